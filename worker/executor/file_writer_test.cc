#include "worker/executor/file_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <cstdio>
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

TEST(FileWriter, WhatWaitsIsBounded) {
  // A pipe that nobody reads.
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const Fd read(ends[0]);
  FileWriter writer{Fd(ends[1])};
  writer.Write(std::string(1 << 20, 'x'));
  // Its thread has taken that, and waits for the reader.
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
