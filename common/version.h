// The version of Maypole: of all its programs, libmaypole and the Python
// package, which reads it from the library.
//
// A release changes this line and the changelog, nothing else.
// tests/start/versions_test.py runs all of them and compares.
#ifndef MAYPOLE_COMMON_VERSION_H_
#define MAYPOLE_COMMON_VERSION_H_

namespace maypole {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace maypole

#endif  // MAYPOLE_COMMON_VERSION_H_
