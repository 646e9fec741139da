/* A plugin for loaded_gpu_test: every function writes down how it was called
 * and gives what the test told it, a code and a text or fixed values.
 *
 * MAYPOLE_TEST_PLUGIN: 1 a plugin; 2 one of another version; 3 one whose table
 * has another size; 4 a library that is no plugin.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "worker/backend/gpu/plugin_abi.h"

#if MAYPOLE_TEST_PLUGIN == 4
int not_a_plugin(void) { return 0; }
#else

static char called[1024];
static int code;
static char text[508];
static int32_t answer;

/* What the test calls (by dlsym). */
const char* test_plugin_called(void) { return called; }
void test_plugin_set(int new_code, const char* new_text, int32_t new_answer) {
  code = new_code;
  memset(text, 0, sizeof(text));
  memcpy(text, new_text, strnlen(new_text, sizeof(text)));
  answer = new_answer;
}

static int Note(MaypoleGpuError* error, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(called, sizeof(called), format, arguments);
  va_end(arguments);
  error->native = 77;
  memcpy(error->text, text, sizeof(text));
  return code;
}

#define U PRIu64
#define GPU ((MaypoleGpu*)0x6b6b)
static const char* Right(const MaypoleGpu* gpu) {
  return gpu == GPU ? "" : "wrong gpu: ";
}

static int Initialize(const char* nccl, MaypoleGpuVersions* v,
                      MaypoleGpuError* e) {
  v->driver = 13010;
  v->runtime = 13000;
  v->nccl = answer;
  memset(v->nccl_error, 'n', sizeof(v->nccl_error)); /* no 0 at the end */
  return Note(e, "initialize '%s'", nccl);
}
static int DeviceCount(int32_t* count, MaypoleGpuError* e) {
  *count = 2;
  return Note(e, "device_count");
}
static int DeviceInfo(int32_t i, MaypoleGpuDeviceInfo* info,
                      MaypoleGpuError* e) {
  snprintf(info->uuid, sizeof(info->uuid), "GPU-%d", i);
  snprintf(info->name, sizeof(info->name), "Test %d", i);
  snprintf(info->bus_id, sizeof(info->bus_id), "0000:0%d:00.0", i);
  info->compute_major = 9;
  info->compute_minor = 1;
  info->multiprocessors = 132;
  info->copy_engines = 3;
  info->total_bytes = 1ull << 37;
  info->exports_memory = i;
  info->stream_flags = !i;
  return Note(e, "device_info %d", i);
}
static int Open(int32_t i, MaypoleGpu** gpu, MaypoleGpuError* e) {
  *gpu = GPU;
  return Note(e, "open %d", i);
}
static void Close(MaypoleGpu* gpu) {
  snprintf(called, sizeof(called), "%sclose", Right(gpu));
}
static int MemoryRoom(MaypoleGpu* g, uint64_t* free, uint64_t* total,
                      MaypoleGpuError* e) {
  *free = 1001;
  *total = 1002;
  return Note(e, "%smemory_room", Right(g));
}
static int Allocate(MaypoleGpu* g, uint64_t* bytes, uint64_t* address,
                    MaypoleGpuError* e) {
  const int result = Note(e, "%sallocate %" U, Right(g), *bytes);
  *bytes = 4096;
  *address = 1003;
  return result;
}
static int ExportMemory(MaypoleGpu* g, uint64_t address, int* fd,
                        MaypoleGpuError* e) {
  *fd = answer;
  return Note(e, "%sexport_memory %" U, Right(g), address);
}
static int ImportMemory(MaypoleGpu* g, int fd, uint64_t bytes,
                        uint64_t* address, MaypoleGpuError* e) {
  *address = 1004;
  return Note(e, "%simport_memory %d %" U, Right(g), fd, bytes);
}
static int FreeMemory(MaypoleGpu* g, uint64_t address, MaypoleGpuError* e) {
  return Note(e, "%sfree_memory %" U, Right(g), address);
}
static int RegisterHost(MaypoleGpu* g, void* host, uint64_t bytes,
                        uint64_t* address, MaypoleGpuError* e) {
  *address = 1005;
  return Note(e, "%sregister_host %p %" U, Right(g), host, bytes);
}
static int UnregisterHost(MaypoleGpu* g, void* host, MaypoleGpuError* e) {
  return Note(e, "%sunregister_host %p", Right(g), host);
}
static int CreateStream(MaypoleGpu* g, uint64_t* stream, MaypoleGpuError* e) {
  *stream = 1006;
  return Note(e, "%screate_stream", Right(g));
}
static int DestroyStream(MaypoleGpu* g, uint64_t s, MaypoleGpuError* e) {
  return Note(e, "%sdestroy_stream %" U, Right(g), s);
}
static int StreamDone(MaypoleGpu* g, uint64_t s, int32_t* done,
                      MaypoleGpuError* e) {
  *done = answer;
  return Note(e, "%sstream_done %" U, Right(g), s);
}
static int Synchronize(MaypoleGpu* g, uint64_t s, MaypoleGpuError* e) {
  return Note(e, "%ssynchronize %" U, Right(g), s);
}
static int WriteValue(MaypoleGpu* g, uint64_t s, uint64_t flag, uint64_t value,
                      MaypoleGpuError* e) {
  return Note(e, "%swrite_value %" U " %" U " %" U, Right(g), s, flag, value);
}
static int WaitValue(MaypoleGpu* g, uint64_t s, uint64_t flag, uint64_t value,
                     int32_t equal, MaypoleGpuError* e) {
  return Note(e, "%swait_value %" U " %" U " %" U " %d", Right(g), s, flag,
              value, equal);
}
static int Copy(MaypoleGpu* g, uint64_t s, uint64_t to, uint64_t from,
                uint64_t bytes, MaypoleGpuError* e) {
  return Note(e, "%scopy %" U " %" U " %" U " %" U, Right(g), s, to, from,
              bytes);
}
static int Fill(MaypoleGpu* g, uint64_t s, uint64_t to, uint32_t word,
                uint64_t words, MaypoleGpuError* e) {
  return Note(e, "%sfill %" U " %" U " %u %" U, Right(g), s, to, word, words);
}
static int Reduce(MaypoleGpu* g, uint64_t s, const MaypoleGpuReduction* r,
                  MaypoleGpuError* e) {
  return Note(e, "%sreduce %" U " %u:%" U ",%" U " %u:%" U " %" U " %g %u %u",
              Right(g), s, r->input_count, r->inputs[0], r->inputs[1],
              r->output_count, r->outputs[0], r->elements, r->scale, r->dtype,
              r->op);
}
static int Spin(MaypoleGpu* g, uint64_t s, int32_t blocks, int64_t ns,
                MaypoleGpuError* e) {
  return Note(e, "%sspin %" U " %d %" PRId64, Right(g), s, blocks, ns);
}
static int KernelCopy(MaypoleGpu* g, uint64_t s, uint64_t to, uint64_t from,
                      uint64_t bytes, int32_t blocks, MaypoleGpuError* e) {
  return Note(e, "%skernel_copy %" U " %" U " %" U " %" U " %d", Right(g), s,
              to, from, bytes, blocks);
}
static int CreateEvent(MaypoleGpu* g, int32_t use, uint64_t* event,
                       MaypoleGpuError* e) {
  *event = 1007;
  return Note(e, "%screate_event %d", Right(g), use);
}
static int DestroyEvent(MaypoleGpu* g, uint64_t event, MaypoleGpuError* e) {
  return Note(e, "%sdestroy_event %" U, Right(g), event);
}
static int Record(MaypoleGpu* g, uint64_t event, uint64_t s,
                  MaypoleGpuError* e) {
  return Note(e, "%srecord %" U " %" U, Right(g), event, s);
}
static int WaitEvent(MaypoleGpu* g, uint64_t s, uint64_t event,
                     MaypoleGpuError* e) {
  return Note(e, "%swait_event %" U " %" U, Right(g), s, event);
}
static int EventDone(MaypoleGpu* g, uint64_t event, int32_t* done,
                     MaypoleGpuError* e) {
  *done = answer;
  return Note(e, "%sevent_done %" U, Right(g), event);
}
static int Milliseconds(MaypoleGpu* g, uint64_t from, uint64_t to,
                        double* milliseconds, MaypoleGpuError* e) {
  *milliseconds = 1.25;
  return Note(e, "%smilliseconds %" U " %" U, Right(g), from, to);
}
static int ExportEvent(MaypoleGpu* g, uint64_t event, uint8_t handle[64],
                       MaypoleGpuError* e) {
  for (int i = 0; i < 64; ++i) handle[i] = (uint8_t)(200 + i);
  return Note(e, "%sexport_event %" U, Right(g), event);
}
static int ImportEvent(MaypoleGpu* g, const uint8_t handle[64], uint64_t* event,
                       MaypoleGpuError* e) {
  *event = 1008;
  return Note(e, "%simport_event %u %u", Right(g), handle[0], handle[63]);
}
static int MakeNcclId(MaypoleGpu* g, uint8_t id[128], MaypoleGpuError* e) {
  for (int i = 0; i < 128; ++i) id[i] = (uint8_t)(100 + i);
  return Note(e, "%smake_nccl_id", Right(g));
}
static int JoinCommunicator(MaypoleGpu* g, const uint8_t id[128], int32_t size,
                            int32_t rank, uint64_t* communicator,
                            MaypoleGpuError* e) {
  *communicator = 1009;
  return Note(e, "%sjoin_communicator %u %u %d %d", Right(g), id[0], id[127],
              size, rank);
}
static int PollCommunicator(MaypoleGpu* g, uint64_t communicator,
                            int32_t* in_progress, MaypoleGpuError* e) {
  *in_progress = answer;
  return Note(e, "%spoll_communicator %" U, Right(g), communicator);
}
static int AllReduce(MaypoleGpu* g, uint64_t communicator, uint64_t s,
                     uint64_t data, uint64_t elements, uint8_t dtype,
                     MaypoleGpuError* e) {
  return Note(e, "%sall_reduce %" U " %" U " %" U " %" U " %u", Right(g),
              communicator, s, data, elements, dtype);
}
static int AbortCommunicator(MaypoleGpu* g, uint64_t communicator,
                             MaypoleGpuError* e) {
  return Note(e, "%sabort_communicator %" U, Right(g), communicator);
}

static const MaypoleGpuTable kTable = {
    .version = MAYPOLE_GPU_TABLE_VERSION,
    .bytes = sizeof(MaypoleGpuTable) - (MAYPOLE_TEST_PLUGIN == 3 ? 8 : 0),
    .initialize = Initialize,
    .device_count = DeviceCount,
    .device_info = DeviceInfo,
    .open = Open,
    .close = Close,
    .memory_room = MemoryRoom,
    .allocate = Allocate,
    .export_memory = ExportMemory,
    .import_memory = ImportMemory,
    .free_memory = FreeMemory,
    .register_host = RegisterHost,
    .unregister_host = UnregisterHost,
    .create_stream = CreateStream,
    .destroy_stream = DestroyStream,
    .stream_done = StreamDone,
    .synchronize = Synchronize,
    .write_value = WriteValue,
    .wait_value = WaitValue,
    .copy = Copy,
    .fill = Fill,
    .reduce = Reduce,
    .spin = Spin,
    .kernel_copy = KernelCopy,
    .create_event = CreateEvent,
    .destroy_event = DestroyEvent,
    .record = Record,
    .wait_event = WaitEvent,
    .event_done = EventDone,
    .milliseconds = Milliseconds,
    .export_event = ExportEvent,
    .import_event = ImportEvent,
    .make_nccl_id = MakeNcclId,
    .join_communicator = JoinCommunicator,
    .poll_communicator = PollCommunicator,
    .all_reduce = AllReduce,
    .abort_communicator = AbortCommunicator,
};

const MaypoleGpuTable* maypole_gpu_table(uint32_t version) {
  if (MAYPOLE_TEST_PLUGIN == 2) return 0;
  return version == MAYPOLE_GPU_TABLE_VERSION ? &kTable : 0;
}
#endif
