// The groups of measurements of the program.
//
//   Run run = {.device = device, .report = report, .quick = false};
//   run.copy_rate = MeasureCopies(run);   // others state a share of it
//
// Thread contract: one thread, that of the Device.
#ifndef MAYPOLE_TESTS_GPU_FIGURES_FIGURES_H_
#define MAYPOLE_TESTS_GPU_FIGURES_FIGURES_H_

#include <cstdint>
#include <functional>

#include "tests/gpu/figures/report.h"
#include "tests/gpu/testing/device.h"

namespace maypole::cuda {

struct Run {
  Device& device;
  Report& report;
  bool quick;  // few and small: shows that the program works, no more
  double copy_rate = 0;
};

// The shortest time of `submit`'s work on the device's stream, of a few tries,
// in seconds; the first try is not counted.
double SecondsOf(const Run& run, const std::function<void()>& submit);

// Rates of copies. Returns that within the device, bytes read and written.
double MeasureCopies(const Run& run);
// How long after its submission a small copy's end is known: to the host by a
// word or an event, to another process by a word.
void MeasureLatencies(const Run& run);
// One kernel that reduces the memory of several processes (fact 5).
void MeasureReductions(const Run& run);
// Kernels and copies beside the kernels of another process (facts 1 and 2).
void MeasureOverlap(const Run& run);

}  // namespace maypole::cuda

#endif  // MAYPOLE_TESTS_GPU_FIGURES_FIGURES_H_
