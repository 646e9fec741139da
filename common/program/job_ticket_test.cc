#include "common/program/job_ticket.h"

#include <random>
#include <string>

#include "common/limits.h"
#include "common/program/derive.h"
#include "gtest/gtest.h"

namespace maypole {
namespace {

constexpr char kSecret[] = "0123456789abcdef0123456789abcdef";

// RFC 4231, test case 2.
TEST(DeriveTest, IsHmacSha256) {
  EXPECT_EQ(Derive("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

// Agents and coordinators of different builds must agree.
TEST(JobTicketTest, ItsForm) {
  EXPECT_EQ(JobTicket("Jefe", "train-7"),
            "ticket1." + Derive("Jefe", "ticket of train-7") + ".train-7");
  EXPECT_EQ(JobTicket("", "train-7"), "");
}

TEST(JobTicketTest, IsGoodForItsJobAndUnderItsSecret) {
  for (const std::string& job :
       {std::string("j"), std::string("a.b"), std::string("ticket1.x"),
        std::string(kMaxJobBytes, 'j')}) {
    const std::string ticket = JobTicket(kSecret, job);
    EXPECT_EQ(JobOfTicket(ticket, kSecret), job);
    EXPECT_FALSE(JobOfTicket(ticket, "another secret"));
    EXPECT_FALSE(JobOfTicket(ticket, ticket));
    EXPECT_FALSE(JobOfTicket(ticket, ""));
  }
  EXPECT_FALSE(JobOfTicket("", ""));
  EXPECT_FALSE(JobOfTicket(kSecret, kSecret));
}

TEST(JobTicketTest, NoOtherNameFitsIt) {
  const std::string ticket = JobTicket(kSecret, "a");
  const std::string head = ticket.substr(0, ticket.size() - 1);
  for (const std::string& name :
       {std::string(), std::string("b"), std::string("aa"), std::string("A"),
        std::string("a "), std::string("a\0", 2), std::string(64, 'a')}) {
    EXPECT_FALSE(JobOfTicket(head + name, kSecret)) << name;
  }
  // Not even if it was made for a name that no job can have.
  EXPECT_FALSE(JobOfTicket(JobTicket(kSecret, "a b"), kSecret));
  EXPECT_FALSE(JobOfTicket(JobTicket(kSecret, std::string(64, 'a')), kSecret));
}

// Property: whatever differs from a ticket at all is not a ticket.
TEST(JobTicketTest, NothingButItIsATicket) {
  std::mt19937 random(38);
  const std::string ticket = JobTicket(kSecret, "train-7");
  for (size_t bytes = 0; bytes < ticket.size(); ++bytes) {
    EXPECT_FALSE(JobOfTicket(ticket.substr(0, bytes), kSecret));
    EXPECT_FALSE(JobOfTicket(ticket.substr(ticket.size() - bytes), kSecret));
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    EXPECT_FALSE(JobOfTicket(ticket + c, kSecret)) << byte;
    EXPECT_FALSE(JobOfTicket(c + ticket, kSecret)) << byte;
    for (size_t at = 0; at < ticket.size(); ++at) {
      std::string changed = ticket;
      changed[at] = c;
      EXPECT_EQ(JobOfTicket(changed, kSecret).has_value(), changed == ticket);
    }
  }
  for (int i = 0; i < 10000; ++i) {
    std::string noise(random() % 200, '\0');
    for (char& c : noise) c = static_cast<char>(random());
    if (i % 2 == 0) noise = ticket.substr(0, random() % 80) + noise;
    EXPECT_FALSE(JobOfTicket(noise, kSecret));
  }
}

}  // namespace
}  // namespace maypole
