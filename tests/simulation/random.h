// Random: all random decisions of the simulation, from one seed.
//
// Thread contract: not synchronized.
#ifndef MAYPOLE_TESTS_SIMULATION_RANDOM_H_
#define MAYPOLE_TESTS_SIMULATION_RANDOM_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace maypole::simulation {

// SplitMix64: the same numbers on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15 + 1) {}

  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // 0 .. n-1; n is at least 1.
  uint64_t Below(uint64_t n) { return Next() % n; }
  // Both ends included.
  int64_t Between(int64_t a, int64_t b) {
    return a + static_cast<int64_t>(Below(static_cast<uint64_t>(b - a) + 1));
  }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  // Between a and b, with all orders of magnitude equally likely; a >= 1.
  int64_t Magnitude(int64_t a, int64_t b) {
    int doublings = 0;
    while ((a << (doublings + 1)) <= b) ++doublings;
    const int64_t low = a << Below(static_cast<uint64_t>(doublings) + 1);
    return Between(low, low * 2 < b ? low * 2 : b);
  }
  template <typename T>
  void Shuffle(std::vector<T>* v) {
    for (size_t i = v->size(); i > 1; --i) {
      std::swap((*v)[i - 1], (*v)[Below(i)]);
    }
  }
  template <typename T>
  const T& Pick(const std::vector<T>& v) {
    return v[Below(v.size())];
  }

 private:
  uint64_t state_;
};

}  // namespace maypole::simulation

#endif  // MAYPOLE_TESTS_SIMULATION_RANDOM_H_
