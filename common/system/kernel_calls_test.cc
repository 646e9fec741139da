// Runs on the kernel as it is, and under on_old_kernel without some calls.
#include "common/system/kernel_calls.h"

#include <gtest/gtest.h>
#include <sys/utsname.h>

#include <cstdlib>
#include <map>
#include <string>

namespace maypole {
namespace {

struct Expected {
  std::string since;
  std::string error = "Function not implemented";
};

const std::map<std::string, Expected> kExpected = {
    {"eventfd2", {"2.6.27"}},
    {"getrandom", {"3.17"}},
    {"memfd_create", {"3.17"}},
    {"prctl(PR_SET_PDEATHSIG)", {"2.2", "Invalid argument"}},
    {"signalfd4", {"2.6.27"}}};

TEST(CheckKernelCalls, NamesTheCallThatIsRefusedTheKernelAndWhatToDo) {
  const char* const refused = getenv("MAYPOLE_WITHOUT");
  if (refused == nullptr) {
    EXPECT_TRUE(CheckKernelCalls().ok()) << CheckKernelCalls().message();
    return;
  }
  utsname kernel;
  ASSERT_EQ(uname(&kernel), 0);
  const Expected& expected = kExpected.at(refused);
  EXPECT_EQ(CheckKernelCalls().message(),
            std::string("the kernel here (Linux ") + kernel.release +
                ") refuses " + refused + ": " + expected.error +
                "; Maypole cannot run without it. Linux " + expected.since +
                " or newer has it; in a container or sandbox, allow the call");
}

}  // namespace
}  // namespace maypole
