#include "coordinator/service/credentials.h"

#include <random>
#include <string>
#include <vector>

#include "common/program/job_ticket.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace maypole::coordinator {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

constexpr char kCluster[] = "cluster.9f8e7d6c5b4a3928";
constexpr char kOperators[] = "operators.0a1b2c3d4e5f";
constexpr char kAnyJob[] = "*";

// Which executors' calls are allowed ("*": of every job, "": none).
std::string JobsOf(const Credentials& credentials, const std::string& shown) {
  std::string only;
  if (!credentials.Check(Role::kExecutor, shown, &only).ok()) return "";
  return only.empty() ? kAnyJob : only;
}

bool IsOperator(const Credentials& credentials, const std::string& shown) {
  std::string only;
  const bool ok = credentials.Check(Role::kAdmin, shown, &only).ok();
  EXPECT_EQ(only, "");
  return ok;
}

TEST(CredentialsTest, WhoMayDoWhat) {
  const Credentials open, cluster(kCluster, ""), operators("", kOperators),
      both(kCluster, kOperators);
  struct Row {
    const Credentials& at;
    std::string shown;
    std::string jobs;
    bool is_operator;
    bool is_stranger;
  };
  const std::string of_a = JobTicket(kCluster, "a");
  const std::string foreign = JobTicket("another", "a");
  const std::string of_operators = JobTicket(kOperators, "a");
  const std::vector<Row> rows = {
      {open, "", kAnyJob, true, true},
      {open, "sesame", kAnyJob, true, true},
      {open, of_a, kAnyJob, true, true},
      {cluster, "", "", false, true},
      {cluster, kCluster, kAnyJob, true, false},
      {cluster, of_a, "a", false, false},
      {cluster, foreign, "", false, true},
      {cluster, kOperators, "", false, true},
      {operators, "", kAnyJob, false, true},
      {operators, kOperators, kAnyJob, true, false},
      {operators, kCluster, kAnyJob, false, true},
      {operators, of_operators, kAnyJob, false, true},
      {both, "", "", false, true},
      {both, kCluster, kAnyJob, false, false},
      {both, kOperators, "", true, false},
      {both, of_a, "a", false, false},
      {both, foreign, "", false, true},
      {both, of_operators, "", false, true},
  };
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    EXPECT_EQ(JobsOf(row.at, row.shown), row.jobs) << "row " << i;
    EXPECT_EQ(IsOperator(row.at, row.shown), row.is_operator) << "row " << i;
    EXPECT_EQ(!row.at.CheckStranger(row.shown).ok(), row.is_stranger)
        << "row " << i;
  }
  EXPECT_FALSE(open.KeepsStrangersOut());
  EXPECT_FALSE(operators.KeepsStrangersOut());
  EXPECT_TRUE(cluster.KeepsStrangersOut());
}

// Property: no part of a credential, nothing longer and nothing that differs
// from it in a character gives a right.
TEST(CredentialsTest, NothingThatResemblesACredentialIsOne) {
  const Credentials credentials(kCluster, kOperators);
  std::mt19937 random(38);
  const auto has_no_right = [&](const std::string& shown) {
    EXPECT_EQ(JobsOf(credentials, shown), "") << shown;
    EXPECT_FALSE(IsOperator(credentials, shown)) << shown;
    EXPECT_FALSE(credentials.CheckStranger(shown).ok()) << shown;
  };
  for (const std::string& real :
       {std::string(kCluster), std::string(kOperators),
        JobTicket(kCluster, "a"), JobTicket(kCluster, "train-7")}) {
    for (size_t bytes = 0; bytes < real.size(); ++bytes) {
      has_no_right(real.substr(0, bytes));
      has_no_right(real.substr(real.size() - bytes));
      std::string changed = real;
      changed[bytes] = static_cast<char>(changed[bytes] ^ (1 + random() % 255));
      has_no_right(changed);
    }
    has_no_right(real + static_cast<char>(random()));
    has_no_right(real + real);
    has_no_right("a" + real);
  }
}

TEST(CredentialsTest, ATicketIsOfOneJob) {
  EXPECT_TRUE(CheckJob("", "b").ok());
  EXPECT_TRUE(CheckJob("a", "a").ok());
  for (const char* const other : {"b", "", "aa", "A", "a.b"}) {
    EXPECT_EQ(CheckJob("a", other).code(), absl::StatusCode::kPermissionDenied);
  }
  EXPECT_EQ(CheckJob("a", "b\n").message(),
            "this is the ticket of job 'a', not of job 'b?': an executor may "
            "join only the job for which its agent has started it");
}

TEST(CredentialsTest, ARefusalSaysWhatIsExpected) {
  const Credentials cluster(kCluster, ""), both(kCluster, kOperators);
  struct Row {
    const Credentials& at;
    Role role;
    std::string shown;
    StatusCode code;
    std::string text;
  };
  const std::string give = "give --secret_file with the coordinator's secret";
  const std::string operators =
      "give maypolectl --operator_secret_file with the coordinator's operator "
      "secret";
  const std::string of_a = JobTicket(kCluster, "a");
  const Row rows[] = {
      {cluster, Role::kExecutor, "", StatusCode::UNAUTHENTICATED,
       "this coordinator needs the cluster secret; " + give},
      {cluster, Role::kExecutor, JobTicket("old", "a"),
       StatusCode::UNAUTHENTICATED,
       "the cluster secret is not this coordinator's; " + give},
      {cluster, Role::kAdmin, "guess", StatusCode::UNAUTHENTICATED,
       "the cluster secret is not this coordinator's; " + give},
      {cluster, Role::kAdmin, of_a, StatusCode::PERMISSION_DENIED,
       "this is the ticket of job 'a', which is for the job's executors; " +
           give},
      {both, Role::kExecutor, "", StatusCode::UNAUTHENTICATED,
       "this coordinator needs the cluster secret; " + give +
           "; an operator: " + operators},
      {both, Role::kExecutor, kOperators, StatusCode::PERMISSION_DENIED,
       "this is the operator secret, with which nobody joins a job; give "
       "maypole-worker --secret_file with the coordinator's secret"},
      {both, Role::kAdmin, "", StatusCode::UNAUTHENTICATED,
       "this coordinator needs the operator secret; " + operators},
      {both, Role::kAdmin, "guess", StatusCode::UNAUTHENTICATED,
       "the operator secret is not this coordinator's; " + operators},
      {both, Role::kAdmin, kCluster, StatusCode::PERMISSION_DENIED,
       "this is the cluster secret, which is for agents; " + operators},
      {both, Role::kAdmin, of_a, StatusCode::PERMISSION_DENIED,
       "this is the ticket of job 'a', which is for the job's executors; " +
           operators},
  };
  for (const Row& row : rows) {
    std::string only;
    const grpc::Status status = row.at.Check(row.role, row.shown, &only);
    EXPECT_EQ(status.error_code(), row.code) << row.text;
    EXPECT_EQ(status.error_message(), row.text);
    EXPECT_THAT(status.error_message(), ::testing::Not(HasSubstr("ticket1.")));
  }
}

TEST(RoleTest, OnlyCertificatesHaveRoles) {
  EXPECT_TRUE(CheckRole(Role::kAdmin, false, "").ok());
  EXPECT_TRUE(CheckRole(Role::kExecutor, true, "maypole-node").ok());
  EXPECT_TRUE(CheckRole(Role::kAdmin, true, "maypole-admin").ok());
  EXPECT_FALSE(CheckRole(Role::kAdmin, true, "").ok());
  EXPECT_FALSE(CheckRole(Role::kAdmin, true, "maypole-admin2").ok());
}

}  // namespace
}  // namespace maypole::coordinator
