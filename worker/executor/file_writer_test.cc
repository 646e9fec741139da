#include "worker/executor/file_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <future>
#include <sstream>
#include <string>

namespace maypole::worker {
namespace {

std::string Path() { return testing::TempDir() + "/file_writer_test.txt"; }

Fd Open(const std::string& path) {
  return Fd(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
}

std::string Contents() {
  std::stringstream text;
  text << std::ifstream(Path()).rdbuf();
  return text.str();
}

Status CloseAndWait(FileWriter* writer) {
  std::promise<Status> closed;
  writer->Close([&](Status s) { closed.set_value(std::move(s)); });
  return closed.get_future().get();
}

TEST(FileWriter, CloseTellsWhenAllIsWritten) {
  FileWriter writer(Open(Path()));
  std::string all;
  for (int i = 0; i < 1000; ++i) {
    const std::string piece = std::to_string(i) + std::string(1000, 'x');
    writer.Write(piece);
    all += piece;
  }
  EXPECT_TRUE(CloseAndWait(&writer).ok());
  EXPECT_EQ(Contents(), all);
}

TEST(FileWriter, TheEndWritesTheRest) {
  { FileWriter(Open(Path())).Write("rest"); }
  EXPECT_EQ(Contents(), "rest");
}

TEST(FileWriter, AFullDiskIsAnError) {
  FileWriter writer(Fd(open("/dev/full", O_WRONLY | O_CLOEXEC)));
  writer.Write("text");
  const Status s = CloseAndWait(&writer);
  EXPECT_EQ(s.code(), Code::kInternal);
  EXPECT_EQ(s.message(),
            "the timeline's file cannot be written: No space left on device");
}

TEST(FileWriter, ItsThreadOpensTheFile) {
  std::promise<void> go;
  FileWriter writer(
      [&](Fd* file) {
        go.get_future().wait();
        *file = Open(Path());
        return Status();
      },
      [](Status s) { FAIL() << s.message(); });
  writer.Write("while it is opened");
  go.set_value();
  EXPECT_TRUE(CloseAndWait(&writer).ok());
  EXPECT_EQ(Contents(), "while it is opened");
}

TEST(FileWriter, AFileThatCannotBeOpenedIsTold) {
  std::promise<Status> failed;
  FileWriter writer([](Fd*) { return Status(Code::kNotFound, "no place"); },
                    [&](Status s) { failed.set_value(std::move(s)); });
  writer.Write("lost");
  EXPECT_EQ(failed.get_future().get().message(), "no place");
  EXPECT_EQ(CloseAndWait(&writer).message(), "no place");
}

TEST(MakeFileOf, MakesANewFileInTheDirectoryOfAProcess) {
  const std::string directory =
      std::filesystem::canonical(testing::TempDir()).string() + "/of_a_process";
  std::filesystem::remove_all(directory);
  std::filesystem::create_directory(directory);
  const pid_t child = fork();
  if (child == 0) {
    _exit(chdir(directory.c_str()) == 0 && kill(getpid(), SIGSTOP) == 0 ? 0
                                                                        : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  Fd file;
  EXPECT_TRUE(MakeFileOf(child, "t.json", &file).ok());
  EXPECT_TRUE(std::filesystem::exists(directory + "/t.json"));
  const Status again = MakeFileOf(child, "t.json", &file);
  EXPECT_EQ(again.code(), Code::kInvalidArgument);
  EXPECT_EQ(again.message(), "the timeline's file 't.json' cannot be made in " +
                                 directory + ": File exists");
  for (const char* name : {"", ".", "..", "../t", "/t"}) {
    EXPECT_FALSE(MakeFileOf(child, name, &file).ok()) << name;
  }
  std::filesystem::create_symlink(Path(), directory + "/link");
  std::filesystem::remove(Path());
  EXPECT_FALSE(MakeFileOf(child, "link", &file).ok());
  EXPECT_FALSE(std::filesystem::exists(Path()));
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  EXPECT_FALSE(MakeFileOf(child, "t2.json", &file).ok());
  EXPECT_EQ(MakeFileOf(0, "t.json", &file).code(), Code::kFailedPrecondition);
}

TEST(FileWriter, WhatWaitsIsBounded) {
  // A pipe that nobody reads.
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const Fd read(ends[0]);
  FileWriter writer{Fd(ends[1])};
  writer.Write(std::string(1 << 20, 'x'));
  // The writer's thread has taken that text, and waits for the reader.
  pollfd readable{read.get(), POLLIN, 0};
  ASSERT_EQ(poll(&readable, 1, -1), 1);
  writer.Write(std::string(FileWriter::kMaxWaiting, 'x'));
  writer.Write("one too many");
  std::promise<Status> closed;
  writer.Close([&](Status s) { closed.set_value(std::move(s)); });
  std::string buffer(1 << 20, 0);
  while (::read(read.get(), buffer.data(), buffer.size()) > 0) {
  }
  EXPECT_EQ(closed.get_future().get().code(), Code::kResourceExhausted);
}

}  // namespace
}  // namespace maypole::worker
