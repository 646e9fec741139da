#include "worker/backend/gpu/loaded_gpu.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/backend/gpu/plugin_abi.h"

namespace maypole::gpu {
namespace {

absl::StatusCode CodeOf(int code) {
  switch (code) {
    case MAYPOLE_GPU_INVALID_ARGUMENT:
    case MAYPOLE_GPU_RESOURCE_EXHAUSTED:
    case MAYPOLE_GPU_FAILED_PRECONDITION:
    case MAYPOLE_GPU_ABORTED:
    case MAYPOLE_GPU_UNIMPLEMENTED:
    case MAYPOLE_GPU_INTERNAL:
    case MAYPOLE_GPU_UNAVAILABLE:
      return static_cast<absl::StatusCode>(code);
    default:  // an unknown code is not success
      return absl::StatusCode::kInternal;
  }
}

template <size_t N>
std::string Text(const char (&text)[N]) {
  return std::string(text, strnlen(text, N));
}

// Calls a function of the table, whose last argument is the error.
template <typename... Parameters, typename... Arguments>
absl::Status Call(int (*function)(Parameters...), Arguments... arguments) {
  MaypoleGpuError error = {};
  const int code = function(arguments..., &error);
  if (code == MAYPOLE_GPU_OK) return absl::OkStatus();
  return absl::Status(CodeOf(code), Text(error.text));
}

DeviceInfo InfoOf(const MaypoleGpuDeviceInfo& from) {
  DeviceInfo info;
  info.uuid = Text(from.uuid);
  info.name = Text(from.name);
  info.bus_id = Text(from.bus_id);
  info.compute_major = from.compute_major;
  info.compute_minor = from.compute_minor;
  info.multiprocessors = from.multiprocessors;
  info.copy_engines = from.copy_engines;
  info.total_bytes = from.total_bytes;
  info.exports_memory = from.exports_memory != 0;
  info.stream_flags = from.stream_flags != 0;
  return info;
}

// The table's array counts have 32 bits. A larger count is clamped, and is then
// still larger than what the plugin accepts.
uint32_t Count(size_t n) {
  return static_cast<uint32_t>(
      std::min<size_t>(n, std::numeric_limits<uint32_t>::max()));
}

class LoadedGpu : public Gpu {
 public:
  LoadedGpu(const MaypoleGpuTable& table, MaypoleGpu* gpu, DeviceInfo device)
      : table_(table), gpu_(gpu), device_(std::move(device)) {}
  LoadedGpu(const LoadedGpu&) = delete;
  LoadedGpu& operator=(const LoadedGpu&) = delete;
  ~LoadedGpu() override { table_.close(gpu_); }

  const DeviceInfo& device() const override { return device_; }

  absl::StatusOr<Room> MemoryRoom() override {
    Room room;
    return Result(room, Call(table_.memory_room, gpu_, &room.free_bytes,
                             &room.total_bytes));
  }
  absl::StatusOr<Memory> Allocate(uint64_t bytes) override {
    Memory memory{0, bytes};
    return Result(memory,
                  Call(table_.allocate, gpu_, &memory.bytes, &memory.address));
  }
  absl::StatusOr<Fd> Export(Address address) override {
    int fd = -1;
    const absl::Status status = Call(table_.export_memory, gpu_, address, &fd);
    if (!status.ok()) return status;
    return Fd(fd);
  }
  absl::StatusOr<Memory> Import(int fd, uint64_t bytes) override {
    Memory memory{0, bytes};
    return Result(memory,
                  Call(table_.import_memory, gpu_, fd, bytes, &memory.address));
  }
  absl::Status Free(Address address) override {
    return Call(table_.free_memory, gpu_, address);
  }
  absl::StatusOr<Address> RegisterHost(void* host, uint64_t bytes) override {
    Address address = 0;
    return Result(address,
                  Call(table_.register_host, gpu_, host, bytes, &address));
  }
  absl::Status UnregisterHost(void* host) override {
    return Call(table_.unregister_host, gpu_, host);
  }

  absl::StatusOr<Stream> CreateStream() override {
    Stream stream;
    return Result(stream, Call(table_.create_stream, gpu_, &stream.id));
  }
  absl::Status DestroyStream(Stream stream) override {
    return Call(table_.destroy_stream, gpu_, stream.id);
  }
  absl::StatusOr<bool> Done(Stream stream) override {
    int32_t done = 0;
    const absl::Status status =
        Call(table_.stream_done, gpu_, stream.id, &done);
    return Result(done != 0, status);
  }
  absl::Status Synchronize(Stream stream) override {
    return Call(table_.synchronize, gpu_, stream.id);
  }
  absl::Status WriteValue(Stream stream, Address flag,
                          uint64_t value) override {
    return Call(table_.write_value, gpu_, stream.id, flag, value);
  }
  absl::Status WaitValue(Stream stream, Address flag, uint64_t value,
                         WaitFor what) override {
    return Call(table_.wait_value, gpu_, stream.id, flag, value,
                what == WaitFor::kEqual ? 1 : 0);
  }
  absl::Status Copy(Stream stream, Address to, Address from,
                    uint64_t bytes) override {
    return Call(table_.copy, gpu_, stream.id, to, from, bytes);
  }
  absl::Status Fill(Stream stream, Address to, uint32_t word,
                    uint64_t words) override {
    return Call(table_.fill, gpu_, stream.id, to, word, words);
  }

  absl::Status Reduce(Stream stream, const Reduction& r) override {
    MaypoleGpuReduction reduction = {};
    reduction.inputs = r.inputs.data();
    reduction.outputs = r.outputs.data();
    reduction.input_count = Count(r.inputs.size());
    reduction.output_count = Count(r.outputs.size());
    reduction.elements = r.elements;
    reduction.scale = r.scale;
    reduction.dtype = static_cast<uint8_t>(r.dtype);
    reduction.op = static_cast<uint8_t>(r.op);
    return Call(table_.reduce, gpu_, stream.id, &reduction);
  }
  absl::Status Spin(Stream stream, int blocks, int64_t nanoseconds) override {
    return Call(table_.spin, gpu_, stream.id, blocks, nanoseconds);
  }
  absl::Status KernelCopy(Stream stream, Address to, Address from,
                          uint64_t bytes, int blocks) override {
    return Call(table_.kernel_copy, gpu_, stream.id, to, from, bytes, blocks);
  }

  absl::StatusOr<Event> CreateEvent(EventUse use) override {
    Event event;
    return Result(event, Call(table_.create_event, gpu_,
                              static_cast<int32_t>(use), &event.id));
  }
  absl::Status DestroyEvent(Event event) override {
    return Call(table_.destroy_event, gpu_, event.id);
  }
  absl::Status Record(Event event, Stream stream) override {
    return Call(table_.record, gpu_, event.id, stream.id);
  }
  absl::Status WaitEvent(Stream stream, Event event) override {
    return Call(table_.wait_event, gpu_, stream.id, event.id);
  }
  absl::StatusOr<bool> EventDone(Event event) override {
    int32_t done = 0;
    const absl::Status status = Call(table_.event_done, gpu_, event.id, &done);
    return Result(done != 0, status);
  }
  absl::StatusOr<double> Milliseconds(Event from, Event to) override {
    double milliseconds = 0;
    const absl::Status status =
        Call(table_.milliseconds, gpu_, from.id, to.id, &milliseconds);
    return Result(milliseconds, status);
  }
  absl::StatusOr<EventHandle> ExportEvent(Event event) override {
    EventHandle handle = {};
    const absl::Status status = Call(table_.export_event, gpu_, event.id,
                                     reinterpret_cast<uint8_t*>(handle.data()));
    return Result(handle, status);
  }
  absl::StatusOr<Event> ImportEvent(const EventHandle& handle) override {
    Event event;
    return Result(event, Call(table_.import_event, gpu_,
                              reinterpret_cast<const uint8_t*>(handle.data()),
                              &event.id));
  }

  absl::StatusOr<NcclId> MakeNcclId() override {
    NcclId id = {};
    const absl::Status status =
        Call(table_.make_nccl_id, gpu_, reinterpret_cast<uint8_t*>(id.data()));
    return Result(id, status);
  }
  absl::StatusOr<Communicator> JoinCommunicator(const NcclId& id, int size,
                                                int rank) override {
    Communicator communicator;
    return Result(communicator,
                  Call(table_.join_communicator, gpu_,
                       reinterpret_cast<const uint8_t*>(id.data()), size, rank,
                       &communicator.id));
  }
  absl::StatusOr<CommunicatorState> PollCommunicator(
      Communicator communicator) override {
    int32_t in_progress = 0;
    const absl::Status status =
        Call(table_.poll_communicator, gpu_, communicator.id, &in_progress);
    return Result(in_progress != 0 ? CommunicatorState::kInProgress
                                   : CommunicatorState::kReady,
                  status);
  }
  absl::Status AllReduce(Communicator communicator, Stream stream, Address data,
                         uint64_t elements, DType dtype) override {
    return Call(table_.all_reduce, gpu_, communicator.id, stream.id, data,
                elements, static_cast<uint8_t>(dtype));
  }
  absl::Status AbortCommunicator(Communicator communicator) override {
    return Call(table_.abort_communicator, gpu_, communicator.id);
  }

 private:
  // `value` is a reference, so it is read after the call has set it.
  template <typename T>
  static absl::StatusOr<T> Result(const T& value, const absl::Status& status) {
    if (!status.ok()) return status;
    return value;
  }

  const MaypoleGpuTable& table_;  // never unloaded
  MaypoleGpu* const gpu_;
  const DeviceInfo device_;
};

class LoadedDriver : public Driver {
 public:
  LoadedDriver(const MaypoleGpuTable& table, Versions versions)
      : table_(table), versions_(std::move(versions)) {}

  const Versions& versions() const override { return versions_; }

  absl::StatusOr<std::vector<DeviceInfo>> Devices() override {
    int32_t count = 0;
    absl::Status status = Call(table_.device_count, &count);
    if (!status.ok()) return status;
    std::vector<DeviceInfo> devices;
    for (int32_t i = 0; i < count; ++i) {
      MaypoleGpuDeviceInfo info = {};
      status = Call(table_.device_info, i, &info);
      if (!status.ok()) return status;
      devices.push_back(InfoOf(info));
    }
    return devices;
  }

  absl::StatusOr<std::unique_ptr<Gpu>> Open(const std::string& uuid) override {
    absl::StatusOr<std::vector<DeviceInfo>> devices = Devices();
    if (!devices.ok()) return devices.status();
    const auto found =
        std::find_if(devices->begin(), devices->end(),
                     [&](const DeviceInfo& d) { return d.uuid == uuid; });
    if (found == devices->end()) return NoSuchDevice(uuid, *devices);
    MaypoleGpu* gpu = nullptr;
    const absl::Status status =
        Call(table_.open, static_cast<int32_t>(found - devices->begin()), &gpu);
    if (!status.ok()) return status;
    return std::make_unique<LoadedGpu>(table_, gpu, *found);
  }

 private:
  static absl::Status NoSuchDevice(const std::string& uuid,
                                   const std::vector<DeviceInfo>& devices) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no GPU ", uuid, " is visible to this process; visible GPUs: ",
        devices.empty()
            ? "none"
            : absl::StrJoin(devices, ", ",
                            [](std::string* out, const DeviceInfo& d) {
                              absl::StrAppend(out, d.uuid, " (", d.name, ")");
                            })));
  }

  const MaypoleGpuTable& table_;  // never unloaded
  const Versions versions_;
};

struct CloseLibrary {
  void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, CloseLibrary>;

absl::StatusOr<Library> OpenLibrary(const std::string& path) {
  // dlopen("") would return the program itself.
  if (path.empty() || access(path.c_str(), F_OK) != 0) {
    return absl::UnavailableError(absl::StrCat(
        "no GPUs: there is no plugin \"", path,
        "\"; put libmaypole_gpu.so next to the program, or give its path in "
        "MAYPOLE_GPU_PLUGIN"));
  }
  // Without a slash, dlopen would search elsewhere than access().
  const std::string file =
      path.find('/') == std::string::npos ? absl::StrCat("./", path) : path;
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("no GPUs: cannot load the plugin: ", dlerror()));
  }
  return Library(library);
}

absl::StatusOr<const MaypoleGpuTable*> TableOf(const Library& library,
                                               const std::string& path) {
  const auto function = reinterpret_cast<MaypoleGpuTableFunction>(
      dlsym(library.get(), MAYPOLE_GPU_TABLE_SYMBOL));
  if (function == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("no GPUs: ", path,
                     " is not Maypole's GPU plugin: it has "
                     "no " MAYPOLE_GPU_TABLE_SYMBOL));
  }
  const MaypoleGpuTable* table = function(MAYPOLE_GPU_TABLE_VERSION);
  if (table == nullptr || table->version != MAYPOLE_GPU_TABLE_VERSION ||
      table->bytes != sizeof(MaypoleGpuTable)) {
    return absl::FailedPreconditionError(
        absl::StrCat("no GPUs: the plugin ", path,
                     " is of another version of Maypole: its "
                     "table is not version ",
                     MAYPOLE_GPU_TABLE_VERSION,
                     "; use the one that was built with this program"));
  }
  return table;
}

}  // namespace

std::string DefaultPluginPath() {
  const char* path = std::getenv("MAYPOLE_GPU_PLUGIN");
  if (path != nullptr && *path != '\0') return path;
  std::error_code error;
  const std::filesystem::path program =
      std::filesystem::read_symlink("/proc/self/exe", error);
  return (program.parent_path() / "libmaypole_gpu.so").string();
}

absl::StatusOr<std::unique_ptr<Driver>> LoadDriver(const std::string& plugin,
                                                   const std::string& nccl) {
  absl::StatusOr<Library> library = OpenLibrary(plugin);
  if (!library.ok()) return library.status();
  const absl::StatusOr<const MaypoleGpuTable*> table =
      TableOf(*library, plugin);
  if (!table.ok()) return table.status();
  // From here on the plugin has CUDA state in this process: never unload it.
  library->release();
  MaypoleGpuVersions versions = {};
  const absl::Status status =
      Call((*table)->initialize, nccl.c_str(), &versions);
  if (!status.ok()) {
    return absl::Status(status.code(),
                        absl::StrCat("no GPUs: ", status.message()));
  }
  return std::make_unique<LoadedDriver>(
      **table, Versions{versions.driver, versions.runtime, versions.nccl,
                        Text(versions.nccl_error)});
}

}  // namespace maypole::gpu
