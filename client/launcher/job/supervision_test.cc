#include "client/launcher/job/supervision.h"

#include <gtest/gtest.h>

#include <csignal>

namespace maypole::launcher {
namespace {

using std::chrono::milliseconds;

constexpr Exit kClean{};
Exit Code(int code) { return {.signaled = false, .value = code}; }
Exit Killed(int signal) { return {.signaled = true, .value = signal}; }
Time At(int ms) { return Time() + std::chrono::hours(1) + milliseconds(ms); }

TEST(SupervisionTest, AllRanksEndWell) {
  Supervision s(2);
  EXPECT_EQ(s.OnRankExit(0, kClean, At(0), {}), 0);
  EXPECT_FALSE(s.ranks_ended());
  EXPECT_FALSE(s.deadline());
  EXPECT_EQ(s.OnRankExit(1, kClean, At(1), {}), 0);
  EXPECT_TRUE(s.ranks_ended());
  EXPECT_EQ(s.exit_code(), 0);
}

TEST(SupervisionTest, AFailureGivesGraceThenTermThenKill) {
  Supervision s(3);
  EXPECT_EQ(s.OnRankExit(1, Code(3), At(0), {}), 0);
  EXPECT_EQ(s.deadline(), At(0) + kFailureGrace);
  EXPECT_EQ(s.OnTime(At(4999)), 0);
  EXPECT_EQ(s.OnTime(At(5000)), SIGTERM);
  EXPECT_EQ(s.OnRankExit(0, Killed(SIGTERM), At(5001), {}), 0);
  EXPECT_EQ(s.OnTime(At(6999)), 0);
  EXPECT_EQ(s.OnTime(At(7000)), SIGKILL);
  EXPECT_FALSE(s.deadline());
  s.OnRankExit(2, Killed(SIGKILL), At(7001), {});
  EXPECT_EQ(s.exit_code(), 3);
  EXPECT_EQ(s.first_failure()->rank, 1);
}

TEST(SupervisionTest, WhenAllHaveEndedNobodyIsStopped) {
  Supervision s(2);
  s.OnRankExit(1, Code(3), At(0), {});
  s.OnRankExit(0, Code(1), At(4900), {});
  EXPECT_EQ(s.OnTime(At(5000)), 0);
  EXPECT_EQ(s.OnTime(At(9000)), 0);
  EXPECT_EQ(s.exit_code(), 3);
}

TEST(SupervisionTest, RanksThatEndBecauseOfItAreNotTheFirst) {
  Supervision s(3);
  s.OnRankExit(2, Killed(SIGSEGV), At(0), {});
  s.OnRankExit(0, Code(1), At(100), {});
  s.OnRankExit(1, Code(1), At(101), {});
  EXPECT_EQ(s.first_failure()->rank, 2);
  EXPECT_EQ(s.exit_code(), 128 + SIGSEGV);
}

TEST(SupervisionTest, TheFirstTracebackCountsNotTheFirstEnd) {
  Supervision s(2);
  // Rank 0 got the error after rank 1 failed, but ended before it.
  s.OnRankExit(0, Code(1), At(200), {.last_traceback = At(120)});
  s.OnRankExit(1, Code(5), At(250), {.last_traceback = At(100)});
  EXPECT_EQ(s.first_failure()->rank, 1);
  EXPECT_EQ(s.exit_code(), 5);
}

TEST(SupervisionTest, OldTracebacksDoNotCount) {
  Supervision s(2);
  s.OnRankExit(0, Code(1), At(60000), {});
  s.OnRankExit(1, Code(2), At(60001), {.last_traceback = At(0)});
  EXPECT_EQ(s.first_failure()->rank, 0);
}

TEST(SupervisionTest, WhoEndsByMaypolesErrorIsNotTheCause) {
  Supervision s(2);
  // Rank 1 left with exit(3) and no message; its interpreter took long to end.
  s.OnRankExit(0, Code(1), At(100),
               {.last_traceback = At(50), .maypole_error = true});
  s.OnRankExit(1, Code(3), At(200), {});
  EXPECT_EQ(s.first_failure()->rank, 1);
  EXPECT_EQ(s.exit_code(), 3);
}

TEST(SupervisionTest, BehindMaypolesErrorStandsWhoLeftOrHadToBeStopped) {
  const Clues lost{.last_traceback = At(9000), .maypole_error = true};
  Supervision s(4);
  s.OnRankExit(1, kClean, At(0), {});
  s.OnRankExit(0, Code(1), At(9000), lost);
  s.OnRankExit(2, Code(1), At(9100), lost);
  EXPECT_EQ(s.OnTime(At(14000)), SIGTERM);
  s.OnRankExit(3, Killed(SIGTERM), At(14001), {});
  std::vector<Supervision::Suspect> suspects = s.suspects();
  ASSERT_EQ(suspects.size(), 2u);
  EXPECT_EQ(suspects[0].rank, 1);
  EXPECT_TRUE(suspects[0].exited_well);
  EXPECT_EQ(suspects[1].rank, 3);
  EXPECT_FALSE(suspects[1].exited_well);
  EXPECT_EQ(s.exit_code(), 1);
}

TEST(SupervisionTest, WhoLeftIsASuspectAlsoIfItsEndIsSeenLater) {
  Supervision s(3);
  // Rank 1 announced that it leaves; its interpreter took long to end.
  s.OnRankExit(0, Code(1), At(100), {.maypole_error = true});
  s.OnRankExit(1, kClean, At(900), {});
  EXPECT_EQ(s.OnTime(At(5100)), SIGTERM);
  s.OnRankExit(2, kClean, At(5200), {});  // because of SIGTERM
  std::vector<Supervision::Suspect> suspects = s.suspects();
  ASSERT_EQ(suspects.size(), 2u);
  EXPECT_EQ(suspects[0].rank, 1);
  EXPECT_TRUE(suspects[0].exited_well);
  EXPECT_EQ(suspects[1].rank, 2);
  EXPECT_FALSE(suspects[1].exited_well);
}

TEST(SupervisionTest, ARankThatFailedByItselfNeedsNoSuspects) {
  Supervision s(2);
  s.OnRankExit(1, kClean, At(0), {});
  s.OnRankExit(0, Code(1), At(9000), {.last_traceback = At(9000)});
  EXPECT_TRUE(s.suspects().empty());
}

TEST(SupervisionTest, AKilledRankIsSeenLate) {
  Supervision s(2);
  s.OnRankExit(0, Code(1), At(2000), {});
  s.OnRankExit(1, Killed(SIGKILL), At(2100), {});
  EXPECT_EQ(s.first_failure()->rank, 1);
}

TEST(SupervisionTest, ACrashAfterATracebackIsAsOldAsTheTraceback) {
  Supervision s(2);
  s.OnRankExit(1, Code(5), At(2000), {.last_traceback = At(1900)});
  s.OnRankExit(0, Killed(SIGSEGV), At(2100), {.last_traceback = At(1950)});
  EXPECT_EQ(s.first_failure()->rank, 1);
}

TEST(SupervisionTest, AnAbortGetsNoSlack) {
  Supervision s(2);
  s.OnRankExit(1, Code(5), At(2000), {});
  s.OnRankExit(0, Killed(SIGABRT), At(2100), {});
  EXPECT_EQ(s.first_failure()->rank, 1);
}

TEST(SupervisionTest, ASignalIsSentOnAndEndsInKill) {
  Supervision s(2);
  EXPECT_EQ(s.OnSignal(SIGINT, At(0)), SIGINT);
  EXPECT_EQ(s.deadline(), At(0) + kInterruptGrace);
  s.OnRankExit(0, Code(1), At(10), {});
  EXPECT_EQ(s.OnTime(At(1500)), SIGKILL);
  s.OnRankExit(1, Killed(SIGKILL), At(1501), {});
  EXPECT_FALSE(s.first_failure());
  EXPECT_EQ(s.exit_code(), 130);
}

TEST(SupervisionTest, TermGives143AlsoWhenRanksEndWell) {
  Supervision s(1);
  EXPECT_EQ(s.OnSignal(SIGTERM, At(0)), SIGTERM);
  s.OnRankExit(0, kClean, At(10), {});
  EXPECT_EQ(s.exit_code(), 143);
}

TEST(SupervisionTest, TermLeavesTimeAndMayComeAgain) {
  Supervision s(1);
  EXPECT_EQ(s.OnSignal(SIGTERM, At(0)), SIGTERM);
  EXPECT_EQ(s.deadline(), At(0) + kStopTimeout);
  EXPECT_EQ(s.OnSignal(SIGTERM, At(20000)), 0);
  EXPECT_EQ(s.OnTime(At(29999)), 0);
  EXPECT_EQ(s.OnTime(At(30000)), SIGKILL);
  Supervision impatient(1, std::chrono::seconds(3));
  impatient.OnSignal(SIGTERM, At(0));
  EXPECT_EQ(impatient.deadline(), At(3000));
  EXPECT_EQ(impatient.OnSignal(SIGINT, At(1000)), SIGKILL);
}

TEST(SupervisionTest, RanksThatAreKilledAtOnceAreAllKnown) {
  Supervision s(5);
  s.OnRankExit(3, Killed(SIGKILL), At(0), {});
  s.OnRankExit(0, Killed(SIGSEGV), At(1), {});
  s.OnRankExit(1, Code(1), At(2), {.maypole_error = true});
  s.OnRankExit(4, Killed(SIGABRT), At(3), {.maypole_error = true});
  s.OnTime(At(5000));
  s.OnRankExit(2, Killed(SIGTERM), At(5001), {});
  EXPECT_EQ(s.first_failure()->rank, 3);
  ASSERT_EQ(s.also_killed().size(), 1u);
  EXPECT_EQ(s.also_killed()[0].rank, 0);
}

TEST(SupervisionTest, ImpatienceKillsButAnEchoDoesNot) {
  Supervision s(1);
  s.OnSignal(SIGINT, At(0));
  EXPECT_EQ(s.OnSignal(SIGINT, At(10)), 0);
  EXPECT_EQ(s.OnSignal(SIGINT, At(800)), SIGKILL);
}

TEST(SupervisionTest, WithoutItsGuardAllIsKilledAtOnce) {
  Supervision s(2);
  EXPECT_EQ(s.OnLauncherLost(), SIGKILL);
  EXPECT_TRUE(s.interrupted());
}

TEST(ExitTest, Describes) {
  EXPECT_EQ(Describe(Code(3)), "exited with code 3");
  EXPECT_EQ(Describe(Killed(SIGKILL)), "was killed by signal 9 (Killed)");
  EXPECT_EQ(Killed(SIGTERM).code(), 143);
}

TEST(SupervisionTest, WhoWasReplacedIsNoSuspect) {
  Supervision s(2);
  s.OnRankStart();
  s.OnRankReplaced();
  s.OnRankExit(2, {.value = 1}, At(0), {.maypole_error = true});
  EXPECT_TRUE(s.suspects().empty());
  EXPECT_FALSE(s.ranks_ended());
  s.OnRankExit(1, Exit(), At(1), {});
  EXPECT_TRUE(s.ranks_ended());
}

}  // namespace
}  // namespace maypole::launcher
