// The rule for the names of jobs, nodes and hosts.
//
// Names are used unescaped in log lines (job=NAME), metric labels, messages
// ('NAME') and whatever scripts derive from those, file names included. So a
// name must be
//
//   1 to max_bytes printable ASCII characters, none of them a space, a quote
//   (' or "), a slash or a backslash; and neither "." nor "..".
//
// CheckName() checks every name that enters Maypole: MAYPOLE_JOB, --job-name,
// --node, --host, the hello messages to the agent and the coordinator, and
// maypolectl drain. The rule does not apply to names of operations, which may
// contain any bytes (common/wire/signature.h).
//
//   Status s = CheckName("--node", flags.node, kMaxHostBytes);
//
// Thread contract: pure functions.
#ifndef MAYPOLE_COMMON_NAME_H_
#define MAYPOLE_COMMON_NAME_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "common/status.h"

namespace maypole {

// The text in single quotes, for messages: 'a b'. Safe in a log line and on a
// terminal: bytes that are not printable ASCII become '?', and the rest of a
// long text becomes "...".
std::string Quoted(std::string_view text);

// True if a name may contain all of these characters; true for an empty text.
bool HasNameCharacters(std::string_view text);

// Returns kInvalidArgument if `name` breaks the rule. The message begins with
// `what`, says what is expected, and shows the name.
Status CheckName(std::string_view what, std::string_view name,
                 size_t max_bytes);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_NAME_H_
