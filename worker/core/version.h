// The version that --version and logs say.
#ifndef MAYPOLE_WORKER_CORE_VERSION_H_
#define MAYPOLE_WORKER_CORE_VERSION_H_

namespace maypole::worker {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace maypole::worker

#endif  // MAYPOLE_WORKER_CORE_VERSION_H_
