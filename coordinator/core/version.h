// The coordinator's version: --version, Admin.GetStatus, maypole_build_info.
#ifndef MAYPOLE_COORDINATOR_CORE_VERSION_H_
#define MAYPOLE_COORDINATOR_CORE_VERSION_H_

namespace maypole::coordinator {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace maypole::coordinator

#endif  // MAYPOLE_COORDINATOR_CORE_VERSION_H_
