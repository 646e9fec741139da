#include "worker/backend/gpu/loaded_gpu.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/backend/gpu/plugin_abi.h"

namespace maypole::gpu {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string InPackage(const std::string& file) {
  return absl::StrCat(std::getenv("TEST_SRCDIR"), "/",
                      std::getenv("TEST_WORKSPACE"), "/worker/backend/gpu/",
                      file);
}

// The test plugin's own functions (testing/test_plugin.c).
class TestPlugin {
 public:
  TestPlugin() : library_(dlopen(path().c_str(), RTLD_NOW | RTLD_LOCAL)) {}
  ~TestPlugin() { dlclose(library_); }
  static std::string path() { return InPackage("libtest_plugin.so"); }

  std::string called() const {
    return reinterpret_cast<const char* (*)()>(
        dlsym(library_, "test_plugin_called"))();
  }
  // What the next calls give: a code, a text, a number.
  void Set(int code, const std::string& text, int32_t answer = 0) const {
    reinterpret_cast<void (*)(int, const char*, int32_t)>(
        dlsym(library_, "test_plugin_set"))(code, text.c_str(), answer);
  }

 private:
  void* const library_;
};

class LoadedGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    plugin_.Set(0, "");
    auto driver = LoadDriver(TestPlugin::path());
    ASSERT_TRUE(driver.ok()) << driver.status();
    auto gpu = (*driver)->Open("GPU-1");
    ASSERT_TRUE(gpu.ok()) << gpu.status();
    gpu_ = *std::move(gpu);
  }

  TestPlugin plugin_;
  std::unique_ptr<Gpu> gpu_;
};

absl::Status LoadStatus(const std::string& path) {
  return LoadDriver(path).status();
}

TEST(LoadDriver, SaysThatThereIsNoPlugin) {
  const absl::Status status = LoadStatus("/nonexistent/libmaypole_gpu.so");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("no plugin \"/nonexistent/libmaypole_gpu.so\""),
                    HasSubstr("MAYPOLE_GPU_PLUGIN"), Not(HasSubstr("\n"))));
  EXPECT_EQ(LoadStatus("").code(), absl::StatusCode::kUnavailable);
}

TEST(LoadDriver, RefusesAFileThatIsNoLibrary) {
  const std::string path = absl::StrCat(std::getenv("TEST_TMPDIR"), "/text.so");
  std::ofstream(path) << "no library\n";
  const absl::Status status = LoadStatus(path);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr(path));
}

TEST(LoadDriver, RefusesALibraryThatIsNoPlugin) {
  const absl::Status status = LoadStatus(InPackage("libno_plugin.so"));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("has no maypole_gpu_table"));
}

TEST(LoadDriver, RefusesAPluginOfAnotherVersion) {
  for (const char* file : {"libold_plugin.so", "libshort_plugin.so"}) {
    const absl::Status status = LoadStatus(InPackage(file));
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << file;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(file), HasSubstr("another version")));
  }
}

TEST(LoadDriver, PassesOnWhatInitializeSays) {
  const TestPlugin plugin;
  plugin.Set(MAYPOLE_GPU_UNAVAILABLE, "there is no driver");
  const auto driver = LoadDriver(TestPlugin::path());
  EXPECT_EQ(driver.status(),
            absl::UnavailableError("no GPUs: there is no driver"));
}

TEST(LoadDriver, GivesVersionsAndNamesNccl) {
  const TestPlugin plugin;
  plugin.Set(0, "", 22809);
  const auto driver = LoadDriver(TestPlugin::path(), "/a path/libnccl.so.2");
  ASSERT_TRUE(driver.ok()) << driver.status();
  EXPECT_EQ(plugin.called(), "initialize '/a path/libnccl.so.2'");
  const Versions& versions = (*driver)->versions();
  EXPECT_EQ(versions.driver, 13010);
  EXPECT_EQ(versions.runtime, 13000);
  EXPECT_EQ(versions.nccl, 22809);
  EXPECT_EQ(versions.nccl_error, std::string(508, 'n'));
}

TEST(LoadDriver, GivesTheDevices) {
  const TestPlugin plugin;
  plugin.Set(0, "");
  const auto driver = LoadDriver(TestPlugin::path());
  ASSERT_TRUE(driver.ok()) << driver.status();
  const auto devices = (*driver)->Devices();
  ASSERT_TRUE(devices.ok()) << devices.status();
  ASSERT_EQ(devices->size(), 2u);
  const DeviceInfo& info = (*devices)[1];
  EXPECT_EQ(info.uuid, "GPU-1");
  EXPECT_EQ(info.name, "Test 1");
  EXPECT_EQ(info.bus_id, "0000:01:00.0");
  EXPECT_EQ(info.compute_major, 9);
  EXPECT_EQ(info.compute_minor, 1);
  EXPECT_EQ(info.multiprocessors, 132);
  EXPECT_EQ(info.copy_engines, 3);
  EXPECT_EQ(info.total_bytes, uint64_t{1} << 37);
  EXPECT_TRUE(info.exports_memory);
  EXPECT_FALSE(info.stream_flags);
  EXPECT_FALSE((*devices)[0].exports_memory);
  EXPECT_TRUE((*devices)[0].stream_flags);

  const absl::Status status = (*driver)->Open("GPU-9").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("GPU-9"), HasSubstr("GPU-0 (Test 0), GPU-1")));
}

TEST(DefaultPluginPath, IsTheVariableOrBesideTheProgram) {
  setenv("MAYPOLE_GPU_PLUGIN", "/some/where.so", 1);
  EXPECT_EQ(DefaultPluginPath(), "/some/where.so");
  unsetenv("MAYPOLE_GPU_PLUGIN");
  const std::filesystem::path path = DefaultPluginPath();
  EXPECT_EQ(path.filename(), "libmaypole_gpu.so");
  EXPECT_EQ(path.parent_path(),
            std::filesystem::read_symlink("/proc/self/exe").parent_path());
}

TEST_F(LoadedGpuTest, OpensTheDeviceOfTheUuidAndClosesIt) {
  EXPECT_EQ(plugin_.called(), "open 1");
  EXPECT_EQ(gpu_->device().uuid, "GPU-1");
  gpu_.reset();
  EXPECT_EQ(plugin_.called(), "close");
}

TEST_F(LoadedGpuTest, MapsMemory) {
  const auto room = gpu_->MemoryRoom();
  ASSERT_TRUE(room.ok());
  EXPECT_EQ(room->free_bytes, 1001u);
  EXPECT_EQ(room->total_bytes, 1002u);
  EXPECT_EQ(plugin_.called(), "memory_room");

  const auto memory = gpu_->Allocate(5);
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(memory->address, 1003u);
  EXPECT_EQ(memory->bytes, 4096u);
  EXPECT_EQ(plugin_.called(), "allocate 5");

  const auto imported = gpu_->Import(11, 12);
  ASSERT_TRUE(imported.ok());
  EXPECT_EQ(imported->address, 1004u);
  EXPECT_EQ(imported->bytes, 12u);
  EXPECT_EQ(plugin_.called(), "import_memory 11 12");

  EXPECT_TRUE(gpu_->Free(13).ok());
  EXPECT_EQ(plugin_.called(), "free_memory 13");

  void* host = reinterpret_cast<void*>(0x7000);
  const auto address = gpu_->RegisterHost(host, 14);
  ASSERT_TRUE(address.ok());
  EXPECT_EQ(*address, 1005u);
  EXPECT_EQ(plugin_.called(), "register_host 0x7000 14");
  EXPECT_TRUE(gpu_->UnregisterHost(host).ok());
  EXPECT_EQ(plugin_.called(), "unregister_host 0x7000");
}

TEST_F(LoadedGpuTest, OwnsTheExportedDescriptor) {
  const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  plugin_.Set(0, "", fd);
  {
    const auto exported = gpu_->Export(15);
    ASSERT_TRUE(exported.ok());
    EXPECT_EQ(exported->get(), fd);
    EXPECT_EQ(plugin_.called(), "export_memory 15");
  }
  EXPECT_EQ(fcntl(fd, F_GETFD), -1);  // closed
}

TEST_F(LoadedGpuTest, MapsStreams) {
  const auto stream = gpu_->CreateStream();
  ASSERT_TRUE(stream.ok());
  EXPECT_EQ(stream->id, 1006u);
  EXPECT_EQ(plugin_.called(), "create_stream");
  EXPECT_TRUE(gpu_->DestroyStream({21}).ok());
  EXPECT_EQ(plugin_.called(), "destroy_stream 21");
  EXPECT_FALSE(*gpu_->Done({22}));
  plugin_.Set(0, "", 1);
  EXPECT_TRUE(*gpu_->Done({22}));
  EXPECT_EQ(plugin_.called(), "stream_done 22");
  EXPECT_TRUE(gpu_->Synchronize({23}).ok());
  EXPECT_EQ(plugin_.called(), "synchronize 23");
  EXPECT_TRUE(gpu_->WriteValue({24}, 25, ~uint64_t{0}).ok());
  EXPECT_EQ(plugin_.called(), "write_value 24 25 18446744073709551615");
  EXPECT_TRUE(gpu_->WaitValue({27}, 28, 29).ok());
  EXPECT_EQ(plugin_.called(), "wait_value 27 28 29 0");
  EXPECT_TRUE(gpu_->WaitValue({27}, 28, 29, WaitFor::kEqual).ok());
  EXPECT_EQ(plugin_.called(), "wait_value 27 28 29 1");
  EXPECT_TRUE(gpu_->Copy({30}, 31, 32, uint64_t{1} << 40).ok());
  EXPECT_EQ(plugin_.called(), "copy 30 31 32 1099511627776");
  EXPECT_TRUE(gpu_->Fill({34}, 35, 0xffffffffu, 37).ok());
  EXPECT_EQ(plugin_.called(), "fill 34 35 4294967295 37");
}

TEST_F(LoadedGpuTest, MapsKernels) {
  const Address inputs[] = {41, 42}, outputs[] = {43};
  EXPECT_TRUE(gpu_->Reduce({40}, {.inputs = inputs,
                                  .outputs = outputs,
                                  .elements = 44,
                                  .dtype = DType::kBfloat16,
                                  .op = Op::kMax,
                                  .scale = 0.5})
                  .ok());
  EXPECT_EQ(plugin_.called(), "reduce 40 2:41,42 1:43 44 0.5 10 4");
  EXPECT_TRUE(gpu_->Spin({45}, 46, int64_t{1} << 40).ok());
  EXPECT_EQ(plugin_.called(), "spin 45 46 1099511627776");
  EXPECT_TRUE(gpu_->KernelCopy({48}, 49, 50, 51, 52).ok());
  EXPECT_EQ(plugin_.called(), "kernel_copy 48 49 50 51 52");
}

TEST_F(LoadedGpuTest, MapsEvents) {
  const auto event = gpu_->CreateEvent(EventUse::kInterprocess);
  ASSERT_TRUE(event.ok());
  EXPECT_EQ(event->id, 1007u);
  EXPECT_EQ(plugin_.called(), "create_event 2");
  EXPECT_TRUE(gpu_->DestroyEvent({61}).ok());
  EXPECT_EQ(plugin_.called(), "destroy_event 61");
  EXPECT_TRUE(gpu_->Record({62}, {63}).ok());
  EXPECT_EQ(plugin_.called(), "record 62 63");
  EXPECT_TRUE(gpu_->WaitEvent({64}, {65}).ok());
  EXPECT_EQ(plugin_.called(), "wait_event 64 65");
  EXPECT_FALSE(*gpu_->EventDone({66}));
  plugin_.Set(0, "", 1);
  EXPECT_TRUE(*gpu_->EventDone({66}));
  EXPECT_EQ(plugin_.called(), "event_done 66");
  EXPECT_EQ(*gpu_->Milliseconds({67}, {68}), 1.25);
  EXPECT_EQ(plugin_.called(), "milliseconds 67 68");

  const auto handle = gpu_->ExportEvent({69});
  ASSERT_TRUE(handle.ok());
  EXPECT_EQ(plugin_.called(), "export_event 69");
  EXPECT_EQ((*handle)[0], std::byte{200});
  EXPECT_EQ((*handle)[63], std::byte{7});
  const auto imported = gpu_->ImportEvent(*handle);
  ASSERT_TRUE(imported.ok());
  EXPECT_EQ(imported->id, 1008u);
  EXPECT_EQ(plugin_.called(), "import_event 200 7");
}

TEST_F(LoadedGpuTest, MapsNccl) {
  const auto id = gpu_->MakeNcclId();
  ASSERT_TRUE(id.ok());
  EXPECT_EQ(plugin_.called(), "make_nccl_id");
  EXPECT_EQ((*id)[127], std::byte{227});
  const auto communicator = gpu_->JoinCommunicator(*id, 4, 3);
  ASSERT_TRUE(communicator.ok());
  EXPECT_EQ(communicator->id, 1009u);
  EXPECT_EQ(plugin_.called(), "join_communicator 100 227 4 3");
  EXPECT_EQ(*gpu_->PollCommunicator({71}), CommunicatorState::kReady);
  plugin_.Set(0, "", 1);
  EXPECT_EQ(*gpu_->PollCommunicator({71}), CommunicatorState::kInProgress);
  EXPECT_EQ(plugin_.called(), "poll_communicator 71");
  EXPECT_TRUE(gpu_->AllReduce({72}, {73}, 74, 75, DType::kFloat16).ok());
  EXPECT_EQ(plugin_.called(), "all_reduce 72 73 74 75 6");
  EXPECT_TRUE(gpu_->AbortCommunicator({76}).ok());
  EXPECT_EQ(plugin_.called(), "abort_communicator 76");
}

TEST_F(LoadedGpuTest, EveryCallPassesOnItsError) {
  plugin_.Set(MAYPOLE_GPU_RESOURCE_EXHAUSTED, "cuThis: out of memory");
  const absl::Status error =
      absl::ResourceExhaustedError("cuThis: out of memory");
  const Address one[] = {1};
  const std::vector<absl::Status> got = {
      gpu_->MemoryRoom().status(),
      gpu_->Allocate(1).status(),
      gpu_->Export(1).status(),
      gpu_->Import(1, 1).status(),
      gpu_->Free(1),
      gpu_->RegisterHost(nullptr, 1).status(),
      gpu_->UnregisterHost(nullptr),
      gpu_->CreateStream().status(),
      gpu_->DestroyStream({1}),
      gpu_->Done({1}).status(),
      gpu_->Synchronize({1}),
      gpu_->WriteValue({1}, 1, 1),
      gpu_->WaitValue({1}, 1, 1),
      gpu_->Copy({1}, 1, 1, 1),
      gpu_->Fill({1}, 1, 1, 1),
      gpu_->Spin({1}, 1, 1),
      gpu_->KernelCopy({1}, 1, 1, 1, 1),
      gpu_->CreateEvent(EventUse::kTiming).status(),
      gpu_->DestroyEvent({1}),
      gpu_->Record({1}, {1}),
      gpu_->WaitEvent({1}, {1}),
      gpu_->EventDone({1}).status(),
      gpu_->Milliseconds({1}, {1}).status(),
      gpu_->ExportEvent({1}).status(),
      gpu_->ImportEvent({}).status(),
      gpu_->MakeNcclId().status(),
      gpu_->JoinCommunicator({}, 1, 1).status(),
      gpu_->PollCommunicator({1}).status(),
      gpu_->AllReduce({1}, {1}, 1, 1, DType::kFloat32),
      gpu_->AbortCommunicator({1}),
  };
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], error) << i;
  const Address two[] = {1, 2};
  EXPECT_EQ(gpu_->Reduce({1}, {.inputs = two, .outputs = one}), error);
}

TEST_F(LoadedGpuTest, MapsEveryCode) {
  const std::pair<int, absl::StatusCode> codes[] = {
      {MAYPOLE_GPU_INVALID_ARGUMENT, absl::StatusCode::kInvalidArgument},
      {MAYPOLE_GPU_RESOURCE_EXHAUSTED, absl::StatusCode::kResourceExhausted},
      {MAYPOLE_GPU_FAILED_PRECONDITION, absl::StatusCode::kFailedPrecondition},
      {MAYPOLE_GPU_ABORTED, absl::StatusCode::kAborted},
      {MAYPOLE_GPU_UNIMPLEMENTED, absl::StatusCode::kUnimplemented},
      {MAYPOLE_GPU_INTERNAL, absl::StatusCode::kInternal},
      {MAYPOLE_GPU_UNAVAILABLE, absl::StatusCode::kUnavailable},
      {5, absl::StatusCode::kInternal},
      {-1, absl::StatusCode::kInternal},
      {4711, absl::StatusCode::kInternal},
  };
  for (const auto& [code, want] : codes) {
    plugin_.Set(code, "t");
    EXPECT_EQ(gpu_->Free(1), absl::Status(want, "t")) << code;
  }
  // A text without an end.
  plugin_.Set(MAYPOLE_GPU_INTERNAL, std::string(508, 'x'));
  EXPECT_EQ(gpu_->Free(1), absl::InternalError(std::string(508, 'x')));
}

}  // namespace
}  // namespace maypole::gpu
