#include "tests/bench/cpp/resnet50.h"

#include <utility>

namespace maypole::bench {
namespace {

constexpr int64_t kExpansion = 4;  // of a bottleneck block's last convolution
constexpr int64_t kClasses = 1000;

class Model {
 public:
  // Convolutions have no bias: a batch normalisation follows each.
  void Convolution(const std::string& name, int64_t out, int64_t in,
                   int64_t kernel) {
    Add(name + ".weight", {out, in, kernel, kernel});
  }

  void BatchNorm(const std::string& name, int64_t channels) {
    Add(name + ".weight", {channels});
    Add(name + ".bias", {channels});
  }

  void Linear(const std::string& name, int64_t out, int64_t in) {
    Add(name + ".weight", {out, in});
    Add(name + ".bias", {out});
  }

  // 1x1, 3x3, 1x1 convolutions; the first block of a layer also projects its
  // input to the number of channels that it puts out.
  void Bottleneck(const std::string& name, int64_t in, int64_t width,
                  bool projects) {
    const int64_t out = width * kExpansion;
    Convolution(name + ".conv1", width, in, 1);
    BatchNorm(name + ".bn1", width);
    Convolution(name + ".conv2", width, width, 3);
    BatchNorm(name + ".bn2", width);
    Convolution(name + ".conv3", out, width, 1);
    BatchNorm(name + ".bn3", out);
    if (!projects) return;
    Convolution(name + ".downsample.0", out, in, 1);
    BatchNorm(name + ".downsample.1", out);
  }

  std::vector<Parameter> Take() { return std::move(parameters_); }

 private:
  void Add(std::string name, std::vector<int64_t> shape) {
    parameters_.push_back({std::move(name), std::move(shape)});
  }

  std::vector<Parameter> parameters_;
};

}  // namespace

int64_t Parameter::elements() const {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

std::vector<Parameter> Resnet50() {
  constexpr int kBlocks[] = {3, 4, 6, 3};
  Model model;
  model.Convolution("conv1", 64, 3, 7);
  model.BatchNorm("bn1", 64);
  int64_t channels = 64;
  int64_t width = 64;
  for (int layer = 0; layer < 4; ++layer, width *= 2) {
    for (int block = 0; block < kBlocks[layer]; ++block) {
      model.Bottleneck(
          "layer" + std::to_string(layer + 1) + "." + std::to_string(block),
          channels, width, block == 0);
      channels = width * kExpansion;
    }
  }
  model.Linear("fc", kClasses, channels);
  return model.Take();
}

}  // namespace maypole::bench
