// A job's ticket: a credential that is good for one job.
//
// Purpose: executors run under the rights of their job's user, so they do not
// get the cluster secret. The agent, which has the secret, makes a ticket from
// it:
//
//   ticket1.HEX.JOB          HEX: Derive(cluster secret, "ticket of JOB")
//
//   const std::string ticket = JobTicket(secret, "train-7");   // an agent
//   if (const auto job = JobOfTicket(shown, secret)) ...       // a coordinator
//
// Coordinators keep no tickets: any coordinator that has the secret, including
// a replacement, checks a ticket by making it again.
//
// Thread contract: pure functions.
#ifndef MAYPOLE_COMMON_PROGRAM_JOB_TICKET_H_
#define MAYPOLE_COMMON_PROGRAM_JOB_TICKET_H_

#include <optional>
#include <string>
#include <string_view>

namespace maypole {

// `job` is a valid name (common/name.h). Empty if there is no secret.
std::string JobTicket(const std::string& secret, std::string_view job);

// The job, if this is a ticket that was made with this secret. How long it
// takes reveals nothing about HEX.
std::optional<std::string> JobOfTicket(std::string_view ticket,
                                       const std::string& secret);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_PROGRAM_JOB_TICKET_H_
