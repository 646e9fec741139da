// The version of Maypole. All programs and libmaypole have it; the Python
// package reads it from the library.
//
// tools/packages/version.py changes it, here and in the texts that name it.
// tests/start/versions_test.py runs every program and compares the versions.
#ifndef MAYPOLE_COMMON_VERSION_H_
#define MAYPOLE_COMMON_VERSION_H_

namespace maypole {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace maypole

#endif  // MAYPOLE_COMMON_VERSION_H_
