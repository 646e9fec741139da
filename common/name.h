// The rule for the names of jobs, nodes and hosts.
//
// A name goes as it is into log lines (job=NAME), metric labels, sentences
// ('NAME') and whatever scripts make of those, file names included. So it is
//
//   1 to max_bytes printable ASCII characters, none of them a space, a quote
//   (' or "), a slash or a backslash; and it is neither "." nor "..".
//
// Every entrance checks it by CheckName: MAYPOLE_JOB, --job-name, --node,
// --host, the agent's and the coordinator's hello, maypolectl drain. Names of
// operations are something else: they may be any bytes
// (common/wire/signature.h).
//
//   Status s = CheckName("--node", flags.node, kMaxHostBytes);
//
// Thread contract: pure functions.
#ifndef MAYPOLE_COMMON_NAME_H_
#define MAYPOLE_COMMON_NAME_H_

#include <cstddef>
#include <string_view>

#include "common/status.h"

namespace maypole {

// True if all characters are such as names have; of the empty text, too.
bool HasNameCharacters(std::string_view text);

// kInvalidArgument if `name` is no name. The message begins with `what`, says
// what is expected, and shows the name without anything that a log line or a
// terminal could not bear.
Status CheckName(std::string_view what, std::string_view name,
                 size_t max_bytes);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_NAME_H_
