#include "tests/gpu/probe/lab/nccl_log.h"

#include <gtest/gtest.h>

namespace maypole::probe {
namespace {

// Lines as NCCL writes them.
constexpr char kLog[] =
    "n0:12:12 [0] NCCL INFO Bootstrap : Using lo:127.0.0.1<0>\n"
    "\n"
    "n0:12:14 [0] init.cc:891 NCCL WARN Duplicate GPU detected : rank 0 and "
    "rank 1 both on CUDA device 8000 \n"
    "[2025-01-02 03:04:05] n0:12:14 [0] socket.cc:2 NCCL WARN first\n"
    "n0:12:14 [0] socket.cc:2 NCCL WARN \n"
    "n0:12:14 [0] socket.cc:2 NCCL WARN second\n"
    "n0:13:14 [0] socket.cc:2 NCCL WARN first";

TEST(NcclLogTest, LastWarningsWithoutTheirPlace) {
  EXPECT_EQ(LastWarnings(kLog, 2), "second; first");
  EXPECT_EQ(LastWarnings(kLog, 10),
            "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device "
            "8000; second; first");
}

TEST(NcclLogTest, Nothing) {
  EXPECT_EQ(LastWarnings("", 3), "");
  EXPECT_EQ(LastWarnings("n0:12:12 [0] NCCL INFO fine\n", 3), "");
  EXPECT_EQ(LastWarnings(kLog, 0), "");
}

TEST(NcclLogTest, LongWarningsAreCut) {
  const std::string log = "x NCCL WARN " + std::string(5000, 'w') + "\n";
  EXPECT_EQ(LastWarnings(log, 1), std::string(200, 'w'));
}

}  // namespace
}  // namespace maypole::probe
