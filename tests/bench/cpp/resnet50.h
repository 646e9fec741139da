// The gradients of ResNet-50: a real model's mix of tensor sizes.
//
// Purpose: names and shapes of the model's 161 parameters (25,557,032 floats),
// derived from its architecture, in the order of the forward pass and with the
// names torchvision gives them. resnet50.py is the Python twin; twin_test
// compares the two.
//
// Thread contract: a pure function.
#ifndef MAYPOLE_TESTS_BENCH_CPP_RESNET50_H_
#define MAYPOLE_TESTS_BENCH_CPP_RESNET50_H_

#include <cstdint>
#include <string>
#include <vector>

namespace maypole::bench {

struct Parameter {
  std::string name;
  std::vector<int64_t> shape;
  int64_t elements() const;  // 1 for a scalar
};

std::vector<Parameter> Resnet50();

}  // namespace maypole::bench

#endif  // MAYPOLE_TESTS_BENCH_CPP_RESNET50_H_
