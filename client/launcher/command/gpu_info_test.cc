#include "client/launcher/command/gpu_info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace maypole::launcher {
namespace {

using testing::HasSubstr;

Status Missing(const char* why) { return Status(Code::kUnavailable, why); }

GpuFacts TwoGpus() {
  GpuFacts f;
  f.cuda_version = "12.8";
  f.driver_version = "570.86.10";
  f.gpus = {"NVIDIA H200, GPU-a", "NVIDIA H200, GPU-b"};
  f.code = {75, 90};
  f.ptx = {80, 70};
  f.linkers = {.path = "/usr/lib/libnccl.so.2", .version = "2.28.9"};
  f.pythons.status = Missing("python3 on PATH has no package nvidia-nccl");
  return f;
}

TEST(GpuInfoTest, AMachineThatHasEverything) {
  EXPECT_EQ(DescribeGpus(TwoGpus()),
            "\nGPUs:\n"
            "    [X] NVIDIA driver 570.86.10: CUDA 12.8, 2 GPU(s)\n"
            "    [X] GPU 0: NVIDIA H200, GPU-a\n"
            "    [X] GPU 1: NVIDIA H200, GPU-b\n"
            "    [X] kernels: code for sm_75, sm_90; for other GPUs the "
            "driver compiles PTX for sm_80, sm_70\n"
            "    [X] NCCL 2.28.9 (libnccl.so.2 of the dynamic linker): "
            "/usr/lib/libnccl.so.2\n"
            "    [ ] NCCL (of python3): python3 on PATH has no package "
            "nvidia-nccl\n"
            "\nSites of operations on CUDA tensors (--gpu-site):\n"
            "    [X] agent, ranks on one GPU\n"
            "    [X] agent, ranks on several GPUs: the dynamic linker's NCCL\n"
            "    [X] client, one rank for each GPU: the dynamic linker's "
            "NCCL\n"
            "    [X] host\n");
}

TEST(GpuInfoTest, PythonsNcclComesBeforeTheLinkers) {
  const std::string site = "agent, ranks on several GPUs: ";
  const std::string pythons =
      "python3's NCCL, if ranks have loaded it (torch does)";
  GpuFacts f = TwoGpus();
  f.pythons = {.path = "/v/nvidia/nccl/lib/libnccl.so.2", .version = "2.27.3"};
  EXPECT_THAT(DescribeGpus(f), HasSubstr("[X] " + site + pythons +
                                         ", else the dynamic linker's NCCL\n"));
  f.linkers = {.status = Missing("NCCL cannot be loaded: ...")};
  EXPECT_THAT(DescribeGpus(f), HasSubstr("[X] " + site + pythons + "\n"));
  f.pythons = {.status = Missing("none")};
  EXPECT_THAT(DescribeGpus(f),
              HasSubstr("[ ] " + site + "there is no usable NCCL\n"));
  EXPECT_EQ(UsableNccl(f), "");
}

TEST(GpuInfoTest, TheVariablesNcclComesFirst) {
  const std::string site = "agent, ranks on several GPUs: ";
  GpuFacts f = TwoGpus();
  f.pythons = {.path = "/v/libnccl.so.2", .version = "2.27.3"};
  f.library = "/o/libnccl.so.2";
  f.named = {.path = "/o/libnccl.so.2", .version = "2.26.2"};
  EXPECT_THAT(DescribeGpus(f),
              HasSubstr("    [X] NCCL 2.26.2 (MAYPOLE_NCCL_LIBRARY): "
                        "/o/libnccl.so.2\n"));
  EXPECT_THAT(DescribeGpus(f),
              HasSubstr("[X] " + site + "the NCCL of MAYPOLE_NCCL_LIBRARY\n"));
  f.named.status = Missing("there is no such file");
  EXPECT_THAT(DescribeGpus(f),
              HasSubstr("[ ] NCCL (MAYPOLE_NCCL_LIBRARY): there is no"));
  EXPECT_EQ(UsableNccl(f), "the dynamic linker's NCCL");
  f.linkers.status = Missing("NCCL cannot be loaded: ...");
  EXPECT_THAT(
      DescribeGpus(f),
      HasSubstr("[ ] " + site + "MAYPOLE_NCCL_LIBRARY=/o/libnccl.so.2\n"));
  f.library = "";  // as in an executor: the linker's
  EXPECT_EQ(UsableNccl(f), "");
}

TEST(GpuInfoTest, TheVariableSaysNone) {
  GpuFacts f = TwoGpus();
  f.library = "none";
  EXPECT_THAT(
      DescribeGpus(f),
      HasSubstr("    [ ] NCCL (MAYPOLE_NCCL_LIBRARY): none, as it says\n"));
  EXPECT_THAT(DescribeGpus(f), HasSubstr("[ ] agent, ranks on several GPUs: "
                                         "MAYPOLE_NCCL_LIBRARY=none\n"));
  EXPECT_EQ(UsableNccl(f), "");
}

TEST(GpuInfoTest, WhatIsMissingIsSaid) {
  GpuFacts f = TwoGpus();
  f.code = f.ptx = {};
  EXPECT_THAT(DescribeGpus(f),
              HasSubstr("[ ] kernels: this build has none, because there was "
                        "no nvcc: "));
  EXPECT_THAT(DescribeGpus(f), HasSubstr("[ ] agent, ranks on one GPU: this "
                                         "build has no kernels"));
  f.driver = Missing("there is no NVIDIA driver");
  EXPECT_THAT(DescribeGpus(f),
              HasSubstr("[ ] NVIDIA driver: there is no NVIDIA driver\n"));
  EXPECT_THAT(DescribeGpus(f),
              HasSubstr("[ ] host: there is no usable NVIDIA driver\n"));
}

}  // namespace
}  // namespace maypole::launcher
