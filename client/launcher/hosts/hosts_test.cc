#include "client/launcher/hosts/hosts.h"

#include <gtest/gtest.h>

namespace maypole::launcher {
namespace {

bool IsVm7(const std::string& name) {
  return name == "vm7" || name == "localhost";
}

// "a:2 b:1*": '*' marks this machine.
std::string Text(const std::vector<Host>& hosts) {
  std::string text;
  for (const Host& h : hosts) {
    text += (text.empty() ? "" : " ") + h.name + ":" + std::to_string(h.slots) +
            (h.here ? "*" : "");
  }
  return text;
}

std::string List(const std::string& text) {
  std::vector<Host> hosts;
  Status status = ParseHosts(text, IsVm7, &hosts);
  return status.ok() ? Text(hosts) : status.message();
}

std::string File(const std::string& text) {
  std::vector<Host> hosts;
  Status status = ParseHostFile("f", text, IsVm7, &hosts);
  return status.ok() ? Text(hosts) : status.message();
}

TEST(HostsTest, Lists) {
  EXPECT_EQ(List("a:2,b:4"), "a:2 b:4");
  EXPECT_EQ(List("a"), "a:1");
  EXPECT_EQ(List("me@a:3, b:1"), "me@a:3 b:1");
  EXPECT_EQ(List("10.0.0.2:2,[fe80::1]:2,[::2],fd00::3"),
            "10.0.0.2:2 fe80::1:2 ::2:1 fd00::3:1");
}

TEST(HostsTest, AHostNamedTwiceHasTheSlotsOfBoth) {
  EXPECT_EQ(List("a:2,b:1,a:1"), "a:3 b:1");
  EXPECT_EQ(List("localhost:2,a:1,vm7:3"), "localhost:5* a:1");
  EXPECT_EQ(List("vm7:1,me@vm7:1"), "vm7:1* me@vm7:1");
  EXPECT_EQ(List("a:16384,a:16384"), "a:16384");
}

TEST(HostsTest, Refusals) {
  EXPECT_EQ(List(""), "-H: '' is not a hostname; give hosts as HOST:SLOTS");
  EXPECT_EQ(List("a:2,,b:2").substr(0, 24), "-H: '' is not a hostname");
  EXPECT_EQ(List("-oProxyCommand=x:1").substr(0, 24),
            "-H: '-oProxyCommand=x' i");
  EXPECT_EQ(List("a b:1").substr(0, 12), "-H: 'a b' is");
  EXPECT_EQ(List("me@:1").substr(0, 12), "-H: 'me@' is");
  EXPECT_EQ(List("a:x"),
            "-H: the slots of a must be a number from 1 to 16384, not 'x'");
  EXPECT_EQ(List("a:"),
            "-H: the slots of a must be a number from 1 to 16384, not ''");
  EXPECT_EQ(List("a:0"),
            "-H: the slots of a must be a number from 1 to 16384, not '0'");
  std::string many;
  for (int i = 0; i <= kMaxHosts; ++i) many += ",h" + std::to_string(i);
  EXPECT_EQ(List(many.substr(1)), "-H: at most 256 hosts are allowed");
}

TEST(HostsTest, Files) {
  EXPECT_EQ(File("# ours\n\na slots=2\n  b:3  # big\r\nvm7\nb slots=1"),
            "a:2 b:4 vm7:1*");
  EXPECT_EQ(File("[fd00::3] slots=2"), "fd00::3:2");
}

TEST(HostsTest, FilesOfOtherTools) {
  EXPECT_EQ(File("a slots=2 max_slots=4\nb max-slots=9 slots = 3\n"),
            "a:2 b:3");
  EXPECT_EQ(File("a sockets=1 slots=2"), "a:2");
  EXPECT_EQ(File("a cpu=2 user=me\nb\tslots=2\t# LAM\r\n"), "me@a:2 b:2");
  EXPECT_EQ(File("a:1,b:1\nc, d:2\n"), "a:1 b:1 c:1 d:2");
  EXPECT_EQ(File("a\na\nb\n"), "a:2 b:1");
}

TEST(HostsTest, FilesNameTheLineThatIsWrong) {
  const std::string expected =
      "expected 'HOST slots=N', 'HOST:N', or several of the latter with commas";
  EXPECT_EQ(File("a slots=2\nb colours=3\n"),
            "f:2: 'b colours=3': unknown word 'colours'; " + expected);
  EXPECT_EQ(File("a slots=\n"), "f:1: 'a slots=': " + expected);
  EXPECT_EQ(File("a slots\n"), "f:1: 'a slots': " + expected);
  EXPECT_EQ(File("a =2\n"), "f:1: 'a =2': " + expected);
  EXPECT_EQ(File("a max_slots=2\n"),
            "f:1: 'a max_slots=2' does not say how many slots: " + expected);
  EXPECT_EQ(File("a:2 slots=2\n"), "f:1: 'a:2 slots=2': " + expected);
  EXPECT_EQ(File("a slots=two"),
            "f:1: the slots of a must be a number from 1 to 16384, not 'two'");
  EXPECT_EQ(File("a:1,,b:1").substr(0, 27), "f:1: '' is not a hostname; ");
  EXPECT_EQ(File("# nothing\n"),
            "f: lists no host; expected lines 'HOST slots=N'");
}

TEST(HostsTest, HostsAreFilledOneAfterTheOther) {
  std::vector<Host> hosts;
  ASSERT_TRUE(ParseHosts("a:2,b:2,c:2", IsVm7, &hosts).ok());
  EXPECT_EQ(SlotsOf(hosts), 6);
  FillHosts(3, &hosts);
  ASSERT_EQ(hosts.size(), 2u);
  EXPECT_EQ(hosts[0].slots, 2);
  EXPECT_EQ(hosts[1].slots, 1);
}

TEST(HostsTest, TheFirstNodesHaveOneRankMore) {
  const auto slots = [](const std::vector<Host>& hosts) {
    std::vector<int> slots;
    for (const Host& host : hosts) slots.push_back(host.slots);
    return slots;
  };
  EXPECT_EQ(slots(NodesHere(4, 2)), (std::vector<int>{2, 2}));
  EXPECT_EQ(slots(NodesHere(3, 2)), (std::vector<int>{2, 1}));
  EXPECT_EQ(slots(NodesHere(5, 3)), (std::vector<int>{2, 2, 1}));
  EXPECT_EQ(slots(NodesHere(3, 1)), (std::vector<int>{3}));
  EXPECT_EQ(NodesHere(3, 2)[1].name, "node1");
  EXPECT_TRUE(NodesHere(3, 2)[1].here);
}

TEST(HostsTest, ANodeHasALimitOfSlots) {
  EXPECT_TRUE(CheckSlots({{.name = "a", .slots = 64}}).ok());
  EXPECT_EQ(CheckSlots({{.name = "a", .slots = 65}}).message(),
            "a has 65 slots, but the limit of one host is 64");
}

TEST(HostsTest, TheMachineOfAUser) {
  EXPECT_EQ(MachineOf("a"), "a");
  EXPECT_EQ(MachineOf("me@there@a"), "a");
}

}  // namespace
}  // namespace maypole::launcher
