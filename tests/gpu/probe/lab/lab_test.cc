// The lab with roles of its own. This program is its actors too.
#include "tests/gpu/probe/lab/lab.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <string>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/backend/gpu/owned.h"
#include "worker/backend/gpu/testing/fake_gpu.h"

namespace maypole::probe {
namespace {

using testing::HasSubstr;

constexpr Duration kSoon = Seconds(20);

// --- Roles -------------------------------------------------------------------

absl::Status Echo(Stage& stage) {
  for (;;) {
    auto line = stage.channel().Receive(kSoon);
    if (absl::IsUnavailable(line.status())) return absl::OkStatus();
    if (!line.ok()) return line.status();
    const absl::Status sent = stage.channel().Send(line->text);
    if (!sent.ok()) return sent;
  }
}

absl::Status Hang(Stage& stage) {
  const absl::Status sent = stage.channel().Send("ready");
  if (!sent.ok()) return sent;
  for (;;) pause();
}

absl::Status Exit(Stage& stage) { _exit(static_cast<int>(stage.Number(0))); }

absl::Status Refuse(Stage&) { return absl::NotFoundError("no such thing"); }

absl::Status FailAtOnce(Stage& stage) {
  struct Waits {
    ~Waits() { pause(); }
  } waits;
  stage.Fail(absl::AbortedError("given up"));
}

absl::Status Tell(Stage& stage) {
  const Options& o = stage.options();
  const char* added = getenv("LAB_ADDED");
  const char* kept = getenv("LAB_KEPT");
  return stage.channel().Send(absl::StrCat(
      absl::StrJoin(stage.arguments(), "|"), "/", o.plugin, "|", o.nccl, "|",
      o.fake, o.quick, "|", o.device, "/", added == nullptr ? "-" : added, "|",
      kept == nullptr ? "-" : kept));
}

// Adds 1 to the first word of the memory that it is given.
absl::Status Count(Stage& stage) {
  auto line = stage.channel().Receive(kSoon);
  if (!line.ok()) return line.status();
  auto memory = SharedMemory::Map(std::move(line->fds.at(0)), 4096);
  if (!memory.ok()) return memory.status();
  ++memory->word(0);
  return stage.channel().Send("counted");
}

absl::Status OpenGpu(Stage& stage) {
  return stage.channel().Send(stage.gpu().device().name);
}

// Starts one that hangs, and tells its process.
absl::Status Lead(Stage& stage) {
  Report report;
  Lab lab({}, &report);
  auto follower = lab.Start("hang");
  if (!follower.ok()) return follower.status();
  const absl::Status sent = stage.channel().Send(absl::StrCat(follower->pid()));
  if (!sent.ok()) return sent;
  for (;;) pause();
}

}  // namespace

const RoleTable& Roles() {
  static const RoleTable* roles = new RoleTable{
      {"echo", Echo},        {"hang", Hang}, {"exit", Exit},
      {"refuse", Refuse},    {"tell", Tell}, {"count", Count},
      {"open gpu", OpenGpu}, {"lead", Lead}, {"fail at once", FailAtOnce},
  };
  return *roles;
}

namespace {

class LabTest : public testing::Test {
 protected:
  Actor Start(const std::string& role,
              std::vector<std::string> arguments = {}) {
    auto actor = lab_.Start(role, std::move(arguments));
    EXPECT_TRUE(actor.ok()) << actor.status();
    return *std::move(actor);
  }

  Report report_;
  Lab lab_{Options{}, &report_};
};

bool Alive(pid_t pid) { return kill(pid, 0) == 0; }

// --- Channel -----------------------------------------------------------------

TEST_F(LabTest, LinesGoBothWaysAndTheEndIsTold) {
  Actor echo = Start("echo");
  EXPECT_TRUE(echo.channel().Send("one two").ok());
  EXPECT_TRUE(echo.channel().Send(std::string(60000, 'x')).ok());
  const auto one = echo.channel().Expect("one", kSoon);
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(one->text, "one two");
  const auto long_one = echo.channel().Receive(kSoon);
  ASSERT_TRUE(long_one.ok()) << long_one.status();
  EXPECT_EQ(long_one->text, std::string(60000, 'x'));
  EXPECT_TRUE(echo.End(kSoon).ok());
}

TEST_F(LabTest, ReceiveHasADeadline) {
  Actor echo = Start("echo");
  const auto start = Clock::now();
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(echo.channel().Receive(Seconds(0.2)).status()));
  EXPECT_GE(Clock::now() - start, Seconds(0.2));
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(echo.channel().Receive(Duration(0)).status()));
}

TEST_F(LabTest, ExpectCitesAnotherLine) {
  Actor echo = Start("echo");
  EXPECT_TRUE(echo.channel().Send("readying 7").ok());
  const auto line = echo.channel().Expect("ready", kSoon);
  EXPECT_EQ(line.status(),
            absl::InternalError("expected 'ready', was told 'readying 7'"));
}

TEST_F(LabTest, LinesThatCannotBeSentAreRefused) {
  Actor echo = Start("echo");
  EXPECT_TRUE(absl::IsInvalidArgument(echo.channel().Send("")));
  EXPECT_TRUE(absl::IsInvalidArgument(
      echo.channel().Send(std::string((64 << 10) + 1, 'x'))));
}

TEST_F(LabTest, DescriptorsPassAndMemoryIsShared) {
  const auto memory = SharedMemory::Create(4096);
  ASSERT_TRUE(memory.ok()) << memory.status();
  memory->word(0) = 41;
  Actor count = Start("count");
  const int fd = memory->fd();
  EXPECT_TRUE(count.channel().Send("memory", {&fd, 1}).ok());
  const auto counted = count.channel().Expect("counted", kSoon);
  EXPECT_TRUE(counted.ok()) << counted.status();
  EXPECT_EQ(memory->word(0), 42u);
}

// --- Actors ------------------------------------------------------------------

TEST_F(LabTest, OneThatHangsIsKilledAtTheDeadline) {
  Actor hang = Start("hang");
  ASSERT_TRUE(hang.channel().Expect("ready", kSoon).ok());
  const pid_t pid = hang.pid();
  const auto start = Clock::now();
  EXPECT_TRUE(absl::IsDeadlineExceeded(hang.End(Seconds(0.3))));
  EXPECT_GE(Clock::now() - start, Seconds(0.3));
  EXPECT_LT(Clock::now() - start, Seconds(10));
  EXPECT_FALSE(Alive(pid));
  EXPECT_EQ(errno, ESRCH);  // reaped too
}

TEST_F(LabTest, NoneOutlivesItsActor) {
  pid_t pid = 0;
  {
    Actor hang = Start("hang");
    pid = hang.pid();
    Actor other = Start("hang");
    const pid_t gone = other.pid();
    other = std::move(hang);
    EXPECT_FALSE(Alive(gone));
    EXPECT_TRUE(Alive(pid));
    EXPECT_EQ(other.pid(), pid);
  }
  EXPECT_FALSE(Alive(pid));
}

TEST_F(LabTest, NoneOutlivesTheLab) {
  Actor lead = Start("lead");
  const auto line = lead.channel().Receive(kSoon);
  ASSERT_TRUE(line.ok()) << line.status();
  pid_t follower = 0;
  ASSERT_TRUE(absl::SimpleAtoi(line->text, &follower));
  EXPECT_TRUE(Alive(follower));
  lead.Kill();
  const auto deadline = Clock::now() + kSoon;
  while (Alive(follower) && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_FALSE(Alive(follower));
}

TEST_F(LabTest, OneThatDiesIsTold) {
  Actor exit = Start("exit", {"7"});
  EXPECT_EQ(
      exit.channel().Expect("ready", kSoon).status(),
      absl::UnavailableError("waiting for 'ready': the other process is gone"));
  EXPECT_EQ(exit.End(kSoon),
            absl::InternalError("the process ended with status 7"));

  Actor hang = Start("hang");
  ASSERT_TRUE(hang.channel().Expect("ready", kSoon).ok());
  kill(hang.pid(), SIGKILL);
  EXPECT_TRUE(absl::IsUnavailable(hang.channel().Receive(kSoon).status()));
  EXPECT_EQ(hang.End(kSoon),
            absl::InternalError("the process was killed by signal 9"));
}

TEST_F(LabTest, ARolesErrorArrivesWithItsCode) {
  Actor refuse = Start("refuse");
  EXPECT_EQ(refuse.channel().Expect("ready", kSoon).status(),
            absl::NotFoundError("no such thing"));
  EXPECT_EQ(refuse.End(kSoon),
            absl::InternalError("the process ended with status 1"));
}

TEST_F(LabTest, FailWaitsForNothingInTheRole) {
  Actor actor = Start("fail at once");
  EXPECT_EQ(actor.channel().Expect("ready", kSoon).status(),
            absl::AbortedError("given up"));
  EXPECT_EQ(actor.End(kSoon),
            absl::InternalError("the process ended with status 1"));
}

TEST_F(LabTest, AnUnknownRoleIsRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(lab_.Start("nobody").status()));
}

TEST_F(LabTest, ArgumentsOptionsAndEnvironmentArrive) {
  setenv("LAB_KEPT", "kept", 1);
  Options options;
  options.plugin = "/a path/p.so";
  options.quick = true;
  options.device = "GPU-7";
  Lab lab(options, &report_);
  lab.SetEnvironment({{"LAB_ADDED", "lab"}});
  const auto told = [&lab](std::map<std::string, std::string> environment) {
    auto actor = lab.Start("tell", {"a b", "", "--fake"}, environment);
    EXPECT_TRUE(actor.ok()) << actor.status();
    const auto line = actor->channel().Receive(kSoon);
    return line.ok() ? line->text : line.status().ToString();
  };
  EXPECT_EQ(told({}), "a b||--fake//a path/p.so||01|GPU-7/lab|kept");
  EXPECT_EQ(told({{"LAB_ADDED", "own"}, {"LAB_KEPT", "x"}}),
            "a b||--fake//a path/p.so||01|GPU-7/own|x");
  lab.SetEnvironment({});
  EXPECT_EQ(told({}), "a b||--fake//a path/p.so||01|GPU-7/-|kept");
  EXPECT_STREQ(getenv("LAB_KEPT"), "kept");
}

// --- GPUs --------------------------------------------------------------------

TEST_F(LabTest, WithoutAPluginTheRoleEndsAndSaysWhy) {
  Options options;
  options.plugin = "/no/such/plugin.so";
  Lab lab(options, &report_);
  auto actor = lab.Start("open gpu");
  ASSERT_TRUE(actor.ok()) << actor.status();
  const absl::Status status = actor->channel().Expect("ready", kSoon).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("/no/such/plugin.so"));
  EXPECT_EQ(actor->End(kSoon),
            absl::InternalError("the process ended with status 1"));
}

TEST_F(LabTest, WithTheFakeThereIsADevice) {
  Options options;
  options.fake = true;
  const auto drivers = PrepareDrivers(options);
  ASSERT_TRUE(drivers.ok()) << drivers.status();
  Lab lab(options, &report_);
  auto actor = lab.Start("open gpu");
  ASSERT_TRUE(actor.ok()) << actor.status();
  const auto line = actor->channel().Receive(kSoon);
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->text, gpu::FakeMachine::Device(0).name);
  EXPECT_TRUE(actor->End(kSoon).ok());
}

TEST(WaitDoneTest, EndsWhenTheStreamDoesOrAtTheDeadline) {
  auto machine = gpu::FakeMachine::Create({});
  ASSERT_TRUE(machine.ok()) << machine.status();
  auto driver = gpu::FakeDriver::Create(*machine);
  ASSERT_TRUE(driver.ok()) << driver.status();
  auto gpu = (*driver)->Open(gpu::FakeMachine::Uuid(0));
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  auto memory = SharedMemory::Create(4096);
  ASSERT_TRUE(memory.ok()) << memory.status();
  auto flags = gpu::HostRegistration::Create(**gpu, memory->data(), 4096);
  ASSERT_TRUE(flags.ok()) << flags.status();
  auto stream = gpu::OwnedStream::Create(**gpu);
  ASSERT_TRUE(stream.ok()) << stream.status();
  EXPECT_TRUE(WaitDone(**gpu, stream->get(), kSoon).ok());
  ASSERT_TRUE((*gpu)->WaitValue(stream->get(), flags->address(), 1).ok());
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(WaitDone(**gpu, stream->get(), Seconds(0.2))));
  __atomic_store_n(&memory->word(0), 1, __ATOMIC_SEQ_CST);
  EXPECT_TRUE(WaitDone(**gpu, stream->get(), kSoon).ok());
}

TEST(QuantileTest, InterpolatesBetweenTheNearest) {
  std::vector<double> values = {30, 10, 20, 40};
  EXPECT_DOUBLE_EQ(Quantile(values, 0), 10);
  EXPECT_DOUBLE_EQ(Quantile(values, 0.5), 25);
  EXPECT_DOUBLE_EQ(Quantile(values, 0.9), 37);
  EXPECT_DOUBLE_EQ(Quantile(values, 1), 40);
  EXPECT_THAT(values, testing::ElementsAre(10, 20, 30, 40));
  std::vector<double> none;
  EXPECT_TRUE(std::isnan(Quantile(none, 0.5)));
}

}  // namespace
}  // namespace maypole::probe

int main(int argc, char** argv) {
  if (const auto status = maypole::probe::PlayRole(argc, argv)) return *status;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
