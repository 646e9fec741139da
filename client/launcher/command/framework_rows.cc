#include "client/launcher/command/framework_rows.h"

#include <compare>
#include <cstdio>

namespace maypole::launcher {
namespace {

// The first two or three numbers of a version; all 0 if it is not known.
struct Version {
  explicit Version(const std::string& text) {
    std::sscanf(text.c_str(), "%d.%d.%d", &major, &minor, &patch);
  }
  Version(int a, int b, int c) : major(a), minor(b), patch(c) {}
  auto operator<=>(const Version&) const = default;
  bool known() const { return *this != Version(0, 0, 0); }

  int major = 0;
  int minor = 0;
  int patch = 0;
};

const Version kFirstTensorFlow(2, 8, 0);
const Version kFirstAsyncTensorFlow(2, 13, 0);
const Version kFirstCompiledTensorFlow(2, 18, 0);
const Version kLastTensorFlow(2, 21, 0);
const Version kFirstTorch(1, 13, 0);
const Version kFirstJaxlib(0, 4, 38);
const Version kFirstNumpyWithoutMxnet(1, 24, 0);

constexpr char kHostOnly[] = "tensors on a GPU go through the host";

class Describer {
 public:
  explicit Describer(const Frameworks& found) : found_(found) {}

  FrameworkRow TensorFlow() const {
    return Row("tensorflow", "TensorFlow", [&](const Version& version) {
      FrameworkRow row = Needs("tensorflow");
      if (version.known() && version < kFirstTensorFlow) {
        return Refused("too old: Maypole supports 2.8 to 2.21");
      }
      if (version.known() && version < kFirstAsyncTensorFlow) {
        row.notes.push_back(
            "older than 2.13: a graph submits all its operations before it "
            "waits for the first one");
      }
      row.notes.push_back(
          version.known() && version < kFirstCompiledTensorFlow
              ? "jit_compile=True: not with collectives, from 2.18 on only"
              : "jit_compile=True: on CPUs only; not with alltoall and join");
      row.notes.push_back(kHostOnly);
      if (version.major > 2 || (version.major == kLastTensorFlow.major &&
                                version.minor > kLastTensorFlow.minor)) {
        row.notes.push_back("newer than 2.21: not tried");
      }
      return row;
    });
  }

  FrameworkRow Torch() const {
    return Row("torch", "PyTorch", [&](const Version& version) {
      if (version.known() && version < kFirstTorch) {
        return Refused("too old: Maypole supports 1.13 and newer");
      }
      return Accepted();
    });
  }

  FrameworkRow Mxnet() const {
    return Row("mxnet", "MXNet", [&](const Version& version) {
      if (version.known() && (version.major != 1 || version.minor != 9)) {
        return Refused("Maypole supports 1.9.1, the last version");
      }
      if (const Version numpy = Of("numpy"); numpy >= kFirstNumpyWithoutMxnet) {
        return Refused("it cannot be imported with NumPy " +
                       found_.versions.at("numpy") + ": install 1.23");
      }
      FrameworkRow row = Needs("mxnet");
      row.notes = {"MXNet is archived: 1.9.1 is its last version", kHostOnly};
      return row;
    });
  }

  FrameworkRow Keras() const {
    return Row("keras", "Keras", [&](const Version& version) {
      return version.major == 2 ? Keras2() : Keras3();
    });
  }

  FrameworkRow Jax() const {
    return Row("jax", "JAX", [&](const Version&) {
      if (!Has("jaxlib")) return Refused("it needs jaxlib, which is not there");
      if (Of("jaxlib").known() && Of("jaxlib") < kFirstJaxlib) {
        return Refused("its jaxlib " + found_.versions.at("jaxlib") +
                       " is too old: Maypole supports 0.4.38 and newer");
      }
      FrameworkRow row = Needs("jax");
      row.notes = {
          "inside pmap and shard_map: refused; reduce over the devices first"};
      return row;
    });
  }

 private:
  // `judge` is called with the version if the framework is there.
  template <typename Judge>
  FrameworkRow Row(const std::string& module, const std::string& name,
                   Judge judge) const {
    FrameworkRow row;
    if (Has(module)) {
      row = judge(Of(module));
      const std::string& version = found_.versions.at(module);
      row.text = name + " " + version +
                 (row.supported ? " (of " + found_.python + ")"
                                : " (" + row.text + ")");
    } else {
      row.text = name + (found_.python.empty()
                             ? " (there is no python3 on PATH)"
                             : " (" + found_.python + " does not find it)");
    }
    if (!row.supported) row.notes.clear();
    row.module = module;
    return row;
  }

  FrameworkRow Keras2() const {
    if (!Has("tensorflow")) {
      return Refused("it needs TensorFlow, which is not there");
    }
    FrameworkRow row = TensorFlow();
    return row.supported ? Accepted() : Refused("not with " + row.text);
  }

  FrameworkRow Keras3() const {
    const std::string& backend = found_.keras_backend;
    if (backend != "tensorflow" && backend != "jax" && backend != "torch") {
      return Refused("its backend is " + backend +
                     ": set KERAS_BACKEND to tensorflow, jax or torch");
    }
    const FrameworkRow of_backend = backend == "jax"     ? Jax()
                                    : backend == "torch" ? Torch()
                                                         : TensorFlow();
    if (!Has(backend)) {
      return Refused("its backend " + backend +
                     " is not installed: set KERAS_BACKEND to another one");
    }
    if (!of_backend.supported) {
      return Refused("not with its backend " + of_backend.text);
    }
    FrameworkRow row = Accepted();
    row.notes = {"backend " + backend + " (KERAS_BACKEND)"};
    if (backend == "tensorflow") {
      row.notes.push_back(
          "where XLA cannot compile collectives, jit_compile is switched off "
          "while fit() trains");
    }
    return row;
  }

  bool Has(const std::string& module) const {
    return found_.versions.contains(module);
  }
  Version Of(const std::string& module) const {
    return Version(Has(module) ? found_.versions.at(module) : "");
  }

  static FrameworkRow Accepted() { return {.supported = true}; }
  static FrameworkRow Refused(const std::string& why) { return {.text = why}; }
  // Accepted, if the framework's library is there.
  FrameworkRow Needs(const std::string& framework) const {
    if (found_.libraries.contains(framework)) return Accepted();
    return Refused("there is no libmaypole_" + framework + ".so in " +
                   found_.library_directory);
  }

  const Frameworks& found_;
};

}  // namespace

std::vector<FrameworkRow> DescribeFrameworks(const Frameworks& found) {
  const Describer describer(found);
  return {describer.TensorFlow(), describer.Torch(), describer.Mxnet(),
          describer.Keras(), describer.Jax()};
}

}  // namespace maypole::launcher
