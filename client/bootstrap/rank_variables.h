// Variables that both ranks and maypolerun read: maypolerun has options for
// them, and reports a wrong value once, before all ranks do.
//
// Each is MAYPOLE_<name> or, if that is not set, HOROVOD_<name>. `get` works
// like getenv (null if unset); an empty value counts as unset.
//
// Thread contract: pure functions of `get`.
#ifndef MAYPOLE_CLIENT_BOOTSTRAP_RANK_VARIABLES_H_
#define MAYPOLE_CLIENT_BOOTSTRAP_RANK_VARIABLES_H_

#include <functional>
#include <string>
#include <vector>

#include "common/status.h"

namespace maypole {

inline constexpr char kLogLevelVariable[] = "MAYPOLE_LOG_LEVEL";
inline constexpr char kThreadAffinityVariable[] = "MAYPOLE_THREAD_AFFINITY";

using GetVariable = std::function<const char*(const char* name)>;

// The first of MAYPOLE_<name>, HOROVOD_<name> that is set, and its full name;
// null if neither is.
const char* EitherVariable(const GetVariable& get, const std::string& name,
                           std::string* full);

// LOG_LEVEL: *out becomes TRACE, DEBUG, INFO, WARNING, ERROR or FATAL; empty if
// not set. In the environment it may be in lower case.
Status ReadLogLevel(const GetVariable& get, std::string* out);

// THREAD_AFFINITY: "0,2,4", one processor for each rank of a node, in the order
// of their local ranks. *out is empty if not set.
Status ReadThreadAffinity(const GetVariable& get, std::vector<int>* out);
Status ParseProcessors(const std::string& name, const std::string& text,
                       std::vector<int>* out);

}  // namespace maypole

#endif  // MAYPOLE_CLIENT_BOOTSTRAP_RANK_VARIABLES_H_
