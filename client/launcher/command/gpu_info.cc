#include "client/launcher/command/gpu_info.h"

namespace maypole::launcher {
namespace {

constexpr char kNoNccl[] = "none";  // the value of MAYPOLE_NCCL_LIBRARY

std::string Line(bool there, const std::string& what) {
  return std::string("    [") + (there ? "X" : " ") + "] " + what + "\n";
}

std::string Driver(const GpuFacts& f) {
  if (!f.driver.ok()) {
    return Line(false, "NVIDIA driver: " + f.driver.message());
  }
  return Line(true,
              "NVIDIA driver" +
                  (f.driver_version.empty() ? "" : " " + f.driver_version) +
                  ": CUDA " + f.cuda_version + ", " +
                  std::to_string(f.gpus.size()) + " GPU(s)");
}

std::string Nccl(const NcclFacts& f, const std::string& whose) {
  if (!f.status.ok()) {
    return Line(false, "NCCL (" + whose + "): " + f.status.message());
  }
  return Line(true, "NCCL " + f.version + " (" + whose + "): " + f.path);
}

// sm_80, sm_90
std::string Names(const std::vector<int>& architectures) {
  std::string names;
  for (const int architecture : architectures) {
    names += (names.empty() ? "sm_" : ", sm_") + std::to_string(architecture);
  }
  return names;
}

std::string Kernels(const GpuFacts& f) {
  if (f.code.empty()) {
    return Line(false,
                "kernels: this build has none, because there was no nvcc: "
                "tensors of ranks that share a GPU, and operations with "
                "factors, are reduced on the host");
  }
  return Line(true, "kernels: code for " + Names(f.code) +
                        "; for other GPUs the driver compiles PTX for " +
                        Names(f.ptx));
}

// Whether MAYPOLE_NCCL_LIBRARY names an NCCL to the executor, instead of the
// one that ranks load.
bool NamesNccl(const GpuFacts& f) {
  return f.library.has_value() && !f.library->empty();
}

std::string NamedNccl(const GpuFacts& f) {
  if (!NamesNccl(f)) return {};
  if (f.library == kNoNccl) {
    return Line(false, "NCCL (MAYPOLE_NCCL_LIBRARY): none, as it says");
  }
  return Nccl(f.named, "MAYPOLE_NCCL_LIBRARY");
}

// Why a site cannot be used; empty: it can.
std::string WhyNoGpu(const GpuFacts& f) {
  if (!f.driver.ok()) return "there is no usable NVIDIA driver";
  return f.gpus.empty() ? "there is no GPU" : "";
}

std::string WhyNotOneGpu(const GpuFacts& f) {
  const std::string why = WhyNoGpu(f);
  if (!why.empty() || !f.code.empty()) return why;
  return "this build has no kernels";
}

// `why` or, if it is empty, why there is no NCCL.
std::string WhyNoNccl(const GpuFacts& f, const std::string& why) {
  if (!why.empty() || !UsableNccl(f).empty()) return why;
  return NamesNccl(f) ? "MAYPOLE_NCCL_LIBRARY=" + *f.library
                      : "there is no usable NCCL";
}

// how: the text if the site can be used.
std::string Site(const std::string& site, const std::string& why_not,
                 const std::string& how = "") {
  const std::string& more = why_not.empty() ? how : why_not;
  return Line(why_not.empty(), site + (more.empty() ? "" : ": " + more));
}

}  // namespace

std::string UsableNccl(const GpuFacts& f) {
  if (f.library == kNoNccl) return {};
  if (NamesNccl(f) && f.named.status.ok()) {
    return "the NCCL of MAYPOLE_NCCL_LIBRARY";
  }
  const std::string linkers =
      f.linkers.status.ok() ? "the dynamic linker's NCCL" : "";
  // Ranks report which NCCL they have loaded only if the variable does not
  // exist.
  if (f.library.has_value() || !f.pythons.status.ok()) return linkers;
  return "python3's NCCL, if ranks have loaded it (torch does)" +
         (linkers.empty() ? "" : ", else " + linkers);
}

std::string DescribeGpus(const GpuFacts& f) {
  std::string text = "\nGPUs:\n" + Driver(f);
  for (size_t i = 0; i < f.gpus.size(); ++i) {
    text += Line(true, "GPU " + std::to_string(i) + ": " + f.gpus[i]);
  }
  text += Kernels(f);
  text += NamedNccl(f);
  text += Nccl(f.linkers, "libnccl.so.2 of the dynamic linker");
  text += Nccl(f.pythons, "of python3");
  text += "\nSites of operations on CUDA tensors (--gpu-site):\n";
  text += Site("agent, ranks on one GPU", WhyNotOneGpu(f));
  text += Site("agent, ranks on several GPUs", WhyNoNccl(f, WhyNotOneGpu(f)),
               UsableNccl(f));
  text += Site("client, one rank for each GPU", WhyNoNccl(f, WhyNoGpu(f)),
               UsableNccl(f));
  text += Site("host", f.driver.ok() ? "" : "there is no usable NVIDIA driver");
  return text;
}

}  // namespace maypole::launcher
