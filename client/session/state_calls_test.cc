#include "client/session/state_calls.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>

namespace maypole {
namespace {

session::StateReply ReplyTo(const session::StateRequest& request,
                            Code code = Code::kOk,
                            const std::string& text = "") {
  auto reply = session::Make<session::StateReply>();
  reply.number = request.number;
  reply.code = static_cast<uint32_t>(code);
  session::SetText(reply.text, text);
  return reply;
}

session::StateRequest Find() {
  auto request = session::Make<session::StateRequest>();
  request.call = static_cast<uint32_t>(session::StateCall::kFind);
  session::SetText(request.name, "state");
  return request;
}

std::vector<Fd> OneDescriptor() {
  std::vector<Fd> fds;
  fds.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
  return fds;
}

TEST(StateCallsTest, ReturnsTheReplyOfAnotherThread) {
  StateCalls calls;
  Fd found;
  std::thread reader;
  const Status s = calls.Call(
      Find(),
      [&](const session::StateRequest& request) {
        reader = std::thread([&calls, request] {
          EXPECT_TRUE(calls.OnReply(ReplyTo(request), OneDescriptor()));
        });
      },
      &found);
  reader.join();
  EXPECT_TRUE(s.ok());
  EXPECT_TRUE(found.valid());
}

TEST(StateCallsTest, ReturnsTheExecutorsError) {
  StateCalls calls;
  Fd found;
  const Status s = calls.Call(
      Find(),
      [&](const session::StateRequest& request) {
        calls.OnReply(ReplyTo(request, Code::kNotFound, "none"), {});
      },
      &found);
  EXPECT_EQ(s.code(), Code::kNotFound);
  EXPECT_EQ(s.message(), "none");
  EXPECT_FALSE(found.valid());
}

TEST(StateCallsTest, ALateReplyIsNotTakenForTheNextOne) {
  StateCalls calls;
  session::StateRequest first;
  Status s = calls.Call(
      Find(), [&](const session::StateRequest& r) { first = r; }, nullptr, 1);
  EXPECT_EQ(s.code(), Code::kDeadlineExceeded);
  Fd found;
  s = calls.Call(
      Find(),
      [&](const session::StateRequest& second) {
        EXPECT_FALSE(calls.OnReply(ReplyTo(first), OneDescriptor()));
        EXPECT_TRUE(calls.OnReply(ReplyTo(second), {}));
      },
      &found);
  EXPECT_TRUE(s.ok());
  EXPECT_FALSE(found.valid());
}

TEST(StateCallsTest, TheEndOfTheExecutorEndsThem) {
  StateCalls calls;
  const Status gone(Code::kUnavailable, "gone");
  Status s = calls.Call(
      Find(), [&](const session::StateRequest&) { calls.End(gone); }, nullptr);
  EXPECT_EQ(s.code(), Code::kUnavailable);
  bool sent = false;
  s = calls.Call(
      Find(), [&](const session::StateRequest&) { sent = true; }, nullptr);
  EXPECT_EQ(s.message(), "gone");
  EXPECT_FALSE(sent);
}

}  // namespace
}  // namespace maypole
