/* The table of functions through which a program uses libmaypole_gpu.so.
 *
 * Purpose: keeps CUDA and NCCL out of the programs. They open this plugin at
 * run time, get its table, and work without GPUs if there is no plugin or no
 * driver. The table is C, so that the client library, which has no Abseil, can
 * use it, too. Each function does what the gpu.h method of that name does;
 * loaded_gpu.cc wraps the table in the classes of gpu.h.
 *
 * Thread contract: as gpu.h says. No exception leaves a function.
 *
 * Invariants: a function returns 0, or a MaypoleGpuCode after it has filled
 * *error. maypole_gpu_table() returns NULL for a version that the plugin does
 * not know. The layout of a version never changes.
 */
#ifndef MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_ABI_H_
#define MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_ABI_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MAYPOLE_GPU_TABLE_VERSION 1
#define MAYPOLE_GPU_TABLE_SYMBOL "maypole_gpu_table"

/* The codes of absl::Status that are used here. */
enum MaypoleGpuCode {
  MAYPOLE_GPU_OK = 0,
  MAYPOLE_GPU_INVALID_ARGUMENT = 3,
  MAYPOLE_GPU_RESOURCE_EXHAUSTED = 8,
  MAYPOLE_GPU_FAILED_PRECONDITION = 9,
  MAYPOLE_GPU_ABORTED = 10,
  MAYPOLE_GPU_UNIMPLEMENTED = 12,
  MAYPOLE_GPU_INTERNAL = 13,
  MAYPOLE_GPU_UNAVAILABLE = 14,
};

typedef struct MaypoleGpuError {
  int32_t native; /* CUresult, cudaError_t, ncclResult_t; 0: the plugin's own */
  char text[508]; /* one line, ends with 0 */
} MaypoleGpuError;

typedef struct MaypoleGpuDeviceInfo {
  char uuid[48];
  char name[256];
  char bus_id[32];
  int32_t compute_major, compute_minor;
  int32_t multiprocessors;
  int32_t copy_engines;
  uint64_t total_bytes;
  int32_t exports_memory, stream_flags;
} MaypoleGpuDeviceInfo;

typedef struct MaypoleGpuVersions {
  int32_t driver, runtime, nccl;
  char nccl_error[508];
} MaypoleGpuVersions;

typedef struct MaypoleGpuReduction {
  const uint64_t* inputs;
  const uint64_t* outputs;
  uint32_t input_count, output_count;
  uint64_t elements;
  double scale;
  uint8_t dtype, op; /* maypole::DType, maypole::Op */
} MaypoleGpuReduction;

/* One device in this process. */
typedef struct MaypoleGpu MaypoleGpu;

typedef struct MaypoleGpuTable {
  uint32_t version; /* MAYPOLE_GPU_TABLE_VERSION */
  uint32_t bytes;   /* sizeof(MaypoleGpuTable) */

  /* Driver. Call initialize() first; `nccl` is a path of libnccl.so.2 or "". */
  int (*initialize)(const char* nccl, MaypoleGpuVersions*, MaypoleGpuError*);
  int (*device_count)(int32_t*, MaypoleGpuError*);
  int (*device_info)(int32_t index, MaypoleGpuDeviceInfo*, MaypoleGpuError*);
  int (*open)(int32_t index, MaypoleGpu**, MaypoleGpuError*);
  void (*close)(MaypoleGpu*);

  /* Memory. */
  int (*memory_room)(MaypoleGpu*, uint64_t* free, uint64_t* total,
                     MaypoleGpuError*);
  int (*allocate)(MaypoleGpu*, uint64_t* bytes, uint64_t* address,
                  MaypoleGpuError*);
  int (*export_memory)(MaypoleGpu*, uint64_t address, int* fd,
                       MaypoleGpuError*);
  int (*import_memory)(MaypoleGpu*, int fd, uint64_t bytes, uint64_t* address,
                       MaypoleGpuError*);
  int (*free_memory)(MaypoleGpu*, uint64_t address, MaypoleGpuError*);
  int (*register_host)(MaypoleGpu*, void*, uint64_t bytes, uint64_t* address,
                       MaypoleGpuError*);
  int (*unregister_host)(MaypoleGpu*, void*, MaypoleGpuError*);

  /* Streams. */
  int (*create_stream)(MaypoleGpu*, uint64_t* stream, MaypoleGpuError*);
  int (*destroy_stream)(MaypoleGpu*, uint64_t stream, MaypoleGpuError*);
  int (*stream_done)(MaypoleGpu*, uint64_t stream, int32_t* done,
                     MaypoleGpuError*);
  int (*synchronize)(MaypoleGpu*, uint64_t stream, MaypoleGpuError*);
  int (*write_value)(MaypoleGpu*, uint64_t stream, uint64_t flag,
                     uint64_t value, MaypoleGpuError*);
  int (*wait_value)(MaypoleGpu*, uint64_t stream, uint64_t flag, uint64_t value,
                    int32_t equal, MaypoleGpuError*);
  int (*copy)(MaypoleGpu*, uint64_t stream, uint64_t to, uint64_t from,
              uint64_t bytes, MaypoleGpuError*);
  int (*fill)(MaypoleGpu*, uint64_t stream, uint64_t to, uint32_t word,
              uint64_t words, MaypoleGpuError*);

  /* Kernels. */
  int (*reduce)(MaypoleGpu*, uint64_t stream, const MaypoleGpuReduction*,
                MaypoleGpuError*);
  int (*spin)(MaypoleGpu*, uint64_t stream, int32_t blocks, int64_t nanoseconds,
              MaypoleGpuError*);
  int (*kernel_copy)(MaypoleGpu*, uint64_t stream, uint64_t to, uint64_t from,
                     uint64_t bytes, int32_t blocks, MaypoleGpuError*);

  /* Events; use: maypole::gpu::EventUse. */
  int (*create_event)(MaypoleGpu*, int32_t use, uint64_t* event,
                      MaypoleGpuError*);
  int (*destroy_event)(MaypoleGpu*, uint64_t event, MaypoleGpuError*);
  int (*record)(MaypoleGpu*, uint64_t event, uint64_t stream, MaypoleGpuError*);
  int (*wait_event)(MaypoleGpu*, uint64_t stream, uint64_t event,
                    MaypoleGpuError*);
  int (*event_done)(MaypoleGpu*, uint64_t event, int32_t* done,
                    MaypoleGpuError*);
  int (*milliseconds)(MaypoleGpu*, uint64_t from, uint64_t to, double*,
                      MaypoleGpuError*);
  int (*export_event)(MaypoleGpu*, uint64_t event, uint8_t handle[64],
                      MaypoleGpuError*);
  int (*import_event)(MaypoleGpu*, const uint8_t handle[64], uint64_t* event,
                      MaypoleGpuError*);

  /* NCCL. */
  int (*make_nccl_id)(MaypoleGpu*, uint8_t id[128], MaypoleGpuError*);
  int (*join_communicator)(MaypoleGpu*, const uint8_t id[128], int32_t size,
                           int32_t rank, uint64_t* communicator,
                           MaypoleGpuError*);
  int (*poll_communicator)(MaypoleGpu*, uint64_t communicator,
                           int32_t* in_progress, MaypoleGpuError*);
  int (*all_reduce)(MaypoleGpu*, uint64_t communicator, uint64_t stream,
                    uint64_t data, uint64_t elements, uint8_t dtype,
                    MaypoleGpuError*);
  int (*abort_communicator)(MaypoleGpu*, uint64_t communicator,
                            MaypoleGpuError*);
} MaypoleGpuTable;

typedef const MaypoleGpuTable* (*MaypoleGpuTableFunction)(uint32_t version);

#ifdef __cplusplus
}
#endif

#endif /* MAYPOLE_WORKER_BACKEND_GPU_PLUGIN_ABI_H_ */
