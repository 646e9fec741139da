// contest_maypole: Maypole by its C++ API, as a contestant. See contest.h.
#include <cstdio>
#include <memory>

#include "tests/bench/contest/contest.h"
#include "tests/bench/cpp/maypole_library.h"

int main() {
  std::unique_ptr<maypole::bench::MaypoleLibrary> library;
  const maypole::Status s = maypole::bench::MaypoleLibrary::Join(&library);
  if (!s.ok()) {
    std::fprintf(stderr, "contest_maypole: %s\n", s.message().c_str());
    return 1;
  }
  return maypole::bench::RunContest(library.get());
}
