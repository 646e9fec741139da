/* maypole.h: the C ABI of libmaypole.
 *
 * A training process joins its job with maypole_init(), submits operations on
 * its tensors and waits for them. Submitting never blocks; operations are
 * matched between ranks by (process set, kind, name), in any order.
 *
 *   #include <stdio.h>
 *   #include "maypole.h"
 *
 *   int main(void) {
 *     float x[4] = {1, 2, 3, 4};
 *     maypole_operation op = {.struct_size = sizeof op,
 *                             .kind = MAYPOLE_ALLREDUCE,
 *                             .dtype = MAYPOLE_FLOAT32,
 *                             .op = MAYPOLE_SUM,
 *                             .dims = 1,
 *                             .shape = {4},
 *                             .prescale = 1.0,
 *                             .postscale = 1.0,
 *                             .name = "x",
 *                             .input = x,
 *                             .output = x};
 *     int64_t handle;
 *     if (maypole_init() != MAYPOLE_OK ||
 *         maypole_submit(&op, &handle) != MAYPOLE_OK ||
 *         maypole_wait(handle, MAYPOLE_WAIT_FOREVER) != MAYPOLE_OK) {
 *       fprintf(stderr, "%s\n", maypole_last_error());
 *       return 1;
 *     }
 *     printf("rank %d of %d: %g\n", maypole_rank(), maypole_size(), x[3]);
 *     maypole_release(handle);
 *     maypole_shutdown();
 *     return 0;
 *   }
 *
 * Thread contract: every function may be called from any thread at any time.
 * After fork() the child is outside the job: maypole_is_initialized() is 0.
 * Units: bytes, milliseconds. Memory given to maypole_submit() must stay valid,
 * and the caller must not touch the output, until the operation is done.
 *
 * Errors: a function that returns a maypole_status other than MAYPOLE_OK has
 * set the calling thread's maypole_last_error().
 */
#ifndef MAYPOLE_H_
#define MAYPOLE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MAYPOLE_ABI_VERSION 10
#define MAYPOLE_MAX_DIMS 8

/* The values are gRPC's status codes. */
typedef enum {
  MAYPOLE_OK = 0,
  MAYPOLE_CANCELLED = 1, /* a signal interrupted the wait; call it again */
  MAYPOLE_UNKNOWN = 2,
  MAYPOLE_INVALID_ARGUMENT = 3,  /* invalid arguments; nothing was done */
  MAYPOLE_DEADLINE_EXCEEDED = 4, /* the wait timed out; the operation is still
                                    pending */
  MAYPOLE_NOT_FOUND = 5,         /* no such handle */
  MAYPOLE_ALREADY_EXISTS = 6,    /* an operation of this name is pending */
  MAYPOLE_PERMISSION_DENIED = 7,
  MAYPOLE_RESOURCE_EXHAUSTED = 8,
  MAYPOLE_FAILED_PRECONDITION = 9, /* mismatch between ranks; not initialized;
                                      the epoch ended, because ranks wait for
                                      each other */
  MAYPOLE_ABORTED = 10,            /* the epoch ended: a rank, executor or
                                      coordinator was lost, or a rank left */
  MAYPOLE_OUT_OF_RANGE = 11,
  MAYPOLE_UNIMPLEMENTED = 12,
  MAYPOLE_INTERNAL = 13,
  MAYPOLE_UNAVAILABLE = 14,
  MAYPOLE_DATA_LOSS = 15,
  MAYPOLE_UNAUTHENTICATED = 16
} maypole_status;

typedef enum {
  MAYPOLE_UINT8 = 0,
  MAYPOLE_INT8 = 1,
  MAYPOLE_UINT16 = 2,
  MAYPOLE_INT16 = 3,
  MAYPOLE_INT32 = 4,
  MAYPOLE_INT64 = 5,
  MAYPOLE_FLOAT16 = 6,
  MAYPOLE_FLOAT32 = 7,
  MAYPOLE_FLOAT64 = 8,
  MAYPOLE_BOOL = 9,
  MAYPOLE_BFLOAT16 = 10
} maypole_dtype;

typedef enum {
  MAYPOLE_CPU = 0, /* host memory */
  MAYPOLE_CUDA = 1 /* memory of a CUDA device */
} maypole_device;

typedef enum {
  MAYPOLE_AVERAGE = 0,
  MAYPOLE_SUM = 1,
  MAYPOLE_ADASUM = 2,
  MAYPOLE_MIN = 3,
  MAYPOLE_MAX = 4,
  MAYPOLE_PRODUCT = 5
} maypole_op;

typedef enum {
  MAYPOLE_ALLREDUCE = 0,
  MAYPOLE_ALLGATHER = 1,
  MAYPOLE_BROADCAST = 2,
  MAYPOLE_ALLTOALL = 3,
  MAYPOLE_REDUCESCATTER = 4,
  MAYPOLE_BARRIER = 5,
  MAYPOLE_JOIN = 6
} maypole_kind;

/* Zero-initialize it, then set struct_size and the fields that the kind needs.
 *
 *   kind           shape                   result
 *   allreduce      equal on all ranks      output, of that shape
 *   broadcast      equal on all ranks      output, of that shape
 *   allgather      [rows, ...]: rows may   maypole_result(): all rows, by rank
 *                  differ by rank
 *   reducescatter  [rows, ...]             output: this rank's rows of the
 *                                          reduced tensor. Each of the n ranks
 *                                          gets rows / n rows; the first
 *                                          rows % n ranks get one more
 *   alltoall       [rows, ...]: rows may   maypole_result(): the rows from
 *                  differ by rank          rank 0, from rank 1, ...; see
 *                                          maypole_received_splits()
 *   barrier        none                    none
 *   join           none                    maypole_result(): *first_dim is the
 *                                          rank that joined last
 *
 * Join: this rank has no more inputs. Until all ranks have joined, the others
 * continue to run operations. A joined rank contributes a neutral input to
 * reductions (average still divides by the number of all ranks) and no rows to
 * allgather and alltoall; the results that it would receive are dropped. A
 * broadcast whose root has joined is an error. A joined rank must not submit
 * anything before its join has ended.
 *
 * Reductions: sum, average (not for bool; integers truncate toward zero), min,
 * max, product; reducescatter supports only sum and average. For bool, sum and
 * max mean OR, product and min mean AND. Integers wrap around on overflow. If
 * an input of min or max is NaN, the result is NaN. Factors (not for bool)
 * multiply integers in float64 and round toward zero; a product outside the
 * dtype's range becomes its limit.
 *
 * Adasum (only allreduce of floating dtypes) adapts to how much the ranks'
 * tensors agree (common/reduce/adasum.h). A group has only Adasums or none.
 * Adasum needs every rank: it fails if one has joined. The library builds it
 * from three operations, named after the tensor (of a group: the first) with
 * the suffix ".adasum". maypole_on_done()'s thread starts the last two, so a
 * callback must not wait for an Adasum. */
typedef struct {
  size_t struct_size;  /* sizeof(maypole_operation) */
  int32_t kind;        /* maypole_kind */
  int32_t dtype;       /* maypole_dtype */
  int32_t op;          /* allreduce, reducescatter: maypole_op */
  int32_t device;      /* maypole_device: where input and output are */
  int32_t process_set; /* 0: all ranks; else an id from
                          maypole_process_set_add() */
  int32_t root;        /* broadcast: the root's global rank */
  int32_t dims;        /* 0 (scalar) .. MAYPOLE_MAX_DIMS */
  int32_t awaited;     /* 1: the caller calls maypole_wait() next (a hint: the
                          progress thread need not be woken) */
  int64_t shape[MAYPOLE_MAX_DIMS];
  double prescale;       /* reductions: factor for the inputs; usually 1.0 */
  double postscale;      /* reductions: factor for the result; usually 1.0 */
  const char* name;      /* NULL: unnamed; unnamed operations are matched by
                            order of submission within process set and kind */
  const void* input;     /* contiguous, row major */
  void* output;          /* of the input's size; may be input (in place).
                            Broadcast: output is used on every rank, input only
                            on the root. Reducescatter: this rank's rows; must
                            not overlap input. Allgather, alltoall: NULL; see
                            maypole_result(). */
  const int64_t* splits; /* alltoall: how many rows of input go to each rank of
                            the process set, in rank order; their sum must be
                            shape[0]. NULL: equal parts */
  int32_t splits_count;  /* the process set's size; 0 if splits is NULL */
  int32_t reserved;
  void* stream; /* CUDA: the stream (cudaStream_t, CUstream) whose work so far
                   makes the input ready; NULL: the legacy default stream */
} maypole_operation;

/* CUDA tensors: the library reads the input in the order of `stream`, so work
 * that the caller enqueues there later may change or free it. Exception: where
 * NCCL runs in this process (MAYPOLE_GPU_SITE=client, or auto with a GPU for
 * each rank), NCCL reads and writes input and output themselves. Both must stay
 * as they are until maypole_copy_result() has returned and, if it returns
 * before the result is there, until its stream has reached that point. When the
 * operation has ended, maypole_copy_result() writes the output in the order of
 * the stream given there, and of no other: work of other streams that uses the
 * output must be done, or that stream must wait for it. The output must stay
 * valid until then. Input and output must be on one device. All ranks must give
 * CUDA tensors, or all CPU tensors. The driver (libcuda.so.1) is opened when
 * the first CUDA tensor is submitted, not by maypole_init(). */

#define MAYPOLE_EXCHANGE_BYTES 8192

/* Carries values from rank 0 to ranks on other nodes before they are connected;
 * for launchers that libmaypole does not support itself. maypole_init() calls
 * both functions on its caller's thread. They return a maypole_status; if it is
 * not MAYPOLE_OK, they write a message to `error`. */
typedef struct {
  size_t struct_size; /* sizeof(maypole_exchange) */
  void* context;      /* passed to both functions */
  int (*put)(void* context, const char* key, const char* value, char* error,
             int error_bytes);
  /* Returns MAYPOLE_DEADLINE_EXCEEDED if the key has not been put within
   * timeout_ms. `value` has room for value_bytes, including the final 0. */
  int (*get)(void* context, const char* key, int timeout_ms, char* value,
             int value_bytes, char* error, int error_bytes);
} maypole_exchange;

/* Must be called before maypole_init(). The struct is copied; NULL removes the
 * one that was set before. */
maypole_status maypole_set_exchange(const maypole_exchange* exchange);

/* Joins the job. Reads this process's place in the job from MAYPOLE_* (set by
 * maypolerun) or from the variables of torchrun, mpirun or srun
 * (docs/design.md section 8); if none are set, this is a job of one rank, in
 * process. Blocks until all ranks of the job have joined or the start timeout
 * has passed. A second call is a no-op, even if the epoch is over; after
 * maypole_shutdown() or maypole_leave_epoch() it joins the job's next epoch. */
maypole_status maypole_init(void);

/* Leaves the job. Operations that are still pending end with an error, here and
 * on the other ranks. A no-op when not initialized. */
maypole_status maypole_shutdown(void);
int maypole_is_initialized(void);

/* Elastic jobs (MAYPOLE_ELASTIC=1; docs/elastic.md). Processes come and go
 * between epochs. maypole_init() joins the next epoch, whose ranks the
 * coordinator assigns, so every function that returns a rank number or a size
 * may return another value then. After MAYPOLE_ABORTED the epoch is over, but
 * the process stays initialized until it leaves.
 *
 * maypole_leave_epoch() is maypole_shutdown(), but also announces that this
 * process will call maypole_init() again: the next epoch waits for it while the
 * process lives, and ranks it before new processes. After maypole_shutdown()
 * maypole_init() joins as a new process. In a job that is not elastic both are
 * the same.
 *
 * maypole_abandon_epoch() is for a process that did not get the job's state in
 * this epoch, because the collectives that bring it failed. It rejoins with the
 * seniority that it had before this epoch, so processes that hold newer state
 * come first; if it had none, it joins as a new process. */
maypole_status maypole_leave_epoch(void);
maypole_status maypole_abandon_epoch(void);

/* Elastic jobs: this process has trained to the end (1), or begins another
 * training (0). When a process that has finished leaves for good, the training
 * is over and does not start again. maypole_init() of a process that comes
 * later returns MAYPOLE_OUT_OF_RANGE, and that process should end. Processes of
 * the last epoch that have not finished may still go on. Does nothing when not
 * initialized, or if the job is not elastic. */
void maypole_set_finished(int finished);

/* How many ranks want to enter or leave the job; 0 if the job is not elastic,
 * -1 when not initialized. While it is not 0, all ranks should agree on a
 * convenient moment to leave the epoch and join the next one. Different ranks
 * may see a change at different times. */
int maypole_change_wanted(void);

/* All return -1 when not initialized. */
int maypole_rank(void);
int maypole_size(void);
int maypole_local_rank(void);
int maypole_local_size(void);
int maypole_cross_rank(void);
int maypole_cross_size(void);
int maypole_is_homogeneous(void); /* every node has the same number of ranks */

/* Starts the operation; never blocks. The caller must eventually pass *handle
 * to maypole_release(). */
maypole_status maypole_submit(const maypole_operation* operation,
                              int64_t* handle);

/* Submits all operations or none. If one cannot be submitted (its arguments are
 * invalid, its name is pending or occurs twice), the error names it and nothing
 * was done. handles[i] belongs to operations[i]; each operation ends on its
 * own. */
maypole_status maypole_submit_group(const maypole_operation* operations,
                                    int32_t count, int64_t* handles);

/* Sets *done to 1 if the operation has ended (successfully or with an error),
 * else to 0. Also moves data, so that polling alone makes progress. */
maypole_status maypole_poll(int64_t handle, int* done);

/* Timeouts of maypole_wait() other than milliseconds. Neither is a time limit.
 * A signal interrupts a wait only while the thread sleeps, not while it moves
 * data. For callers that check for signals between calls, as interpreters do,
 * MAYPOLE_WAIT_INTERRUPTIBLE makes the wait return MAYPOLE_CANCELLED at least
 * every 0.1 s while data moves. */
#define MAYPOLE_WAIT_FOREVER (-1)
#define MAYPOLE_WAIT_INTERRUPTIBLE (-2)
/* As MAYPOLE_WAIT_INTERRUPTIBLE, with a limit after which the caller gives up:
 * it neither waits for the operation again nor submits another one. So until
 * then the rank counts as blocked, as in a wait without a limit. ms > 0. */
#define MAYPOLE_WAIT_OR_GIVE_UP(ms) (MAYPOLE_WAIT_INTERRUPTIBLE - (ms))

/* Waits until the operation has ended, for at most timeout_ms (or as described
 * above), and returns the operation's outcome. After MAYPOLE_DEADLINE_EXCEEDED
 * and MAYPOLE_CANCELLED (a signal handler ran) the operation is still pending.
 */
maypole_status maypole_wait(int64_t handle, int timeout_ms);

/* A callback for the end of an operation; `status` is its outcome, and
 * maypole_last_error() has its text. */
typedef void (*maypole_done)(void* context, int64_t handle,
                             maypole_status status);

/* Calls `done` once when the operation has ended, even if it ended before this
 * call. Callbacks run on a thread of the library that does nothing else, one
 * after the other, in the order in which the operations end. A callback may
 * call every function here (maypole_submit(), maypole_release(), ...), but
 * while it waits for an operation no other callback runs. Like a wait, this
 * call asks for the operation to run as soon as possible. The caller need not
 * wait then, and may release the handle at once.
 * maypole_shutdown() returns after the callbacks of all operations, unless a
 * callback calls it. If this function returns an error, `done` is not called;
 * MAYPOLE_ALREADY_EXISTS: the operation has a callback that was not called yet.
 */
maypole_status maypole_on_done(int64_t handle, maypole_done done,
                               void* context);

/* The result of an operation that has ended successfully. Each of the three
 * pointers may be NULL.
 *   allgather, alltoall  *data is memory of the library, valid until
 *                        maypole_release(); *first_dim is its number of rows
 *   reducescatter        *data is the output, *first_dim this rank's rows
 *   join                 *first_dim is the rank that joined last
 *   process sets         *first_dim is the set's id
 *   others               *data is the output, *first_dim the input's first
 *                        dimension
 * Of an operation on CUDA tensors *data is NULL: see maypole_copy_result(). */
maypole_status maypole_result(int64_t handle, void** data, int64_t* bytes,
                              int64_t* first_dim);

/* For an operation on CUDA tensors that has ended successfully: enqueues the
 * copy of its result on `stream` (NULL: the legacy default stream) and returns
 * when it is done, or, if MAYPOLE_ENABLE_ASYNC_COMPLETION=1 (or HOROVOD_...)
 * was set at maypole_init(), when it is enqueued. `to`: device memory of
 * maypole_result()'s bytes for allgather and alltoall, whose result has no
 * other place; NULL: the operation's output. Even an empty result needs the
 * call: with NCCL in this process the input is in use until then. It may be
 * called again (MAYPOLE_CANCELLED: a signal interrupted the wait; call it again
 * with the same arguments), and the handle may be released as soon as it has
 * returned. */
maypole_status maypole_copy_result(int64_t handle, void* to, void* stream);

/* For an alltoall that has ended successfully: how many rows came from each
 * rank of the process set. count must be the process set's size. */
maypole_status maypole_received_splits(int64_t handle, int64_t* splits,
                                       int32_t count);

/* Creates a process set of these ranks of the job (in any order, each once), or
 * removes one. Every rank of the job, member or not, must make the same
 * requests in the same order. The request is an operation (wait for it, poll
 * it, release it) that ends when all ranks have made it. maypole_result() gives
 * the id as *first_dim: 1, 2, ... in the order of requests, the same on every
 * rank. A set cannot be removed while one of its operations is pending. Sets
 * end with the epoch (maypole_shutdown()). */
maypole_status maypole_process_set_add(const int32_t* ranks, int32_t count,
                                       int64_t* handle);
/* As maypole_process_set_add(), but only the set's members request it, in any
 * order, possibly more than once. The request ends when all members have made
 * it. If a set of these ranks exists already, the request gives that set.
 * (torch.distributed makes groups this way.) */
maypole_status maypole_process_set_add_by_members(const int32_t* ranks,
                                                  int32_t count,
                                                  int64_t* handle);
maypole_status maypole_process_set_remove(int32_t process_set, int64_t* handle);

/* Returns the set's size and writes up to `capacity` of its ranks, in ascending
 * order. Returns -1 if there is no such set. */
int maypole_process_set_ranks(int32_t process_set, int32_t* ranks,
                              int32_t capacity);

/* Releases the handle. A pending operation continues to its end, and its memory
 * must stay valid until then. */
maypole_status maypole_release(int64_t handle);

/* Allocates memory that the other ranks of this node map too (the arena). An
 * allreduce in place on it, or on any part that starts at a multiple of 64
 * bytes, makes no copies if all ranks of the node do the same (prescale 1.0).
 * Each rank still has its own contents: the others write to it only the results
 * of operations.
 * The memory is page aligned and zeroed. Where there is no arena (a job of one
 * rank; --arena_bytes=0) it is ordinary memory. It stays valid until
 * maypole_free(), even after maypole_shutdown(). Returns
 * MAYPOLE_RESOURCE_EXHAUSTED, and allocates nothing, if the arena
 * (--arena_bytes of the agent, or what ulimit -v leaves) or the machine's
 * memory is full. */
maypole_status maypole_allocate(uint64_t bytes, void** memory);

/* Does nothing if memory is NULL. No operation on the memory may be pending. */
maypole_status maypole_free(void* memory);

/* Allocates memory of a CUDA device that the executor of this node also maps.
 * An allreduce in place on it, or on any part that starts at a multiple of 256
 * bytes, makes no copies if the executor reduces it on that device; as with
 * maypole_allocate() each rank has its own contents. Other ranks may use
 * ordinary memory.
 * `gpu` is the device's ordinal in this process, as for cudaSetDevice(). The
 * memory is not zeroed, and no stream uses it. It stays valid until
 * maypole_free_on_gpu(), even after maypole_shutdown(). Waits for the executor,
 * at most 2 s, but not for the device. Returns MAYPOLE_RESOURCE_EXHAUSTED, and
 * allocates nothing, if there is no room (MAYPOLE_GPU_MEMORY_BYTES), or if
 * memory cannot be shared here (MAYPOLE_GPU_MEMORY=host, say, or a rank that is
 * alone on its node, without NCCL in the executors): use ordinary memory then.
 */
maypole_status maypole_allocate_on_gpu(uint64_t bytes, int32_t gpu,
                                       void** memory);

/* Frees memory of maypole_allocate_on_gpu() while these streams may still use
 * it (cudaStream_t, CUstream; NULL: the legacy default stream): it is reused
 * when all work enqueued on them so far is done; this function does not wait
 * for that. No other stream may use it any more, and no operation on it may be
 * pending. Does nothing if memory is NULL. After an error other than
 * MAYPOLE_INVALID_ARGUMENT (one of the streams is capturing a graph, or the
 * device has failed) the memory is freed, but never reused. */
maypole_status maypole_free_on_gpu(void* memory, void* const* streams,
                                   int32_t count);

/* Memory that outlives this process: the executor of the job on this node holds
 * its descriptor under a name, so that a restarted process finds what a dead
 * one has left (maypole.torch.elastic.TorchState does that).
 *
 * maypole_keep_state() gives the executor a copy of the descriptor, which must
 * be a memfd with the seals F_SEAL_SHRINK and F_SEAL_GROW. It replaces the
 * previous one of this name. MAYPOLE_RESOURCE_EXHAUSTED: more than
 * --state_bytes of the agent, or too many names.
 * maypole_find_state() sets *fd to a new descriptor (close-on-exec), which the
 * caller closes; MAYPOLE_NOT_FOUND: there is none of this name.
 * maypole_drop_state(): the executor closes its descriptor. It also does so
 * when the job ends or has had no process on this node for --state_timeout.
 *
 * A name has 1 to 63 printable characters, without spaces, slashes, quotes. The
 * calls wait for the executor, at most 10 s. MAYPOLE_UNIMPLEMENTED: this job
 * has no executor. */
maypole_status maypole_keep_state(const char* name, int fd);
maypole_status maypole_find_state(const char* name, int* fd);
maypole_status maypole_drop_state(const char* name);

/* Copies `bytes` from `from` to `to` (NULL: copies nothing), and returns a
 * digest of them; processes of the job that have the same bytes get the same
 * digest. The ranges must not overlap. */
uint64_t maypole_copy_digest(void* to, const void* from, uint64_t bytes);

/* Starts the job's timeline (docs/timeline.md): from now on all ranks record
 * their operations, and one file, a Chrome trace, receives all of it. `path` is
 * that file, on this rank's host, unless a timeline is on already: then this
 * call only joins that one, whatever its path is. So all ranks may call it, and
 * the first call counts. mark_cycles: also record each report of operations to
 * the coordinator. Returns when the timeline is on; MAYPOLE_INVALID_ARGUMENT if
 * the file cannot be opened. */
maypole_status maypole_start_timeline(const char* path, int32_t mark_cycles);

/* Stops, for all ranks, the timeline that this rank has started or joined, and
 * returns when its file is complete. Does nothing if it has ended already.
 * maypole_shutdown() by all ranks also ends a timeline. */
maypole_status maypole_stop_timeline(void);

/* The calling thread's last error; never NULL. */
const char* maypole_last_error(void);

/* The library's version, "MAJOR.MINOR.PATCH". */
const char* maypole_version(void);

/* A counter of this process, for tests and tuning; -1 if the name is unknown or
 * (except for "arena_bytes") Maypole is not initialized. An operation is
 * counted as completed or failed when its handle is released.
 *   "operations"       operations submitted
 *   "completed"        operations that ended successfully
 *   "failed"           operations that ended with an error
 *   "bytes"            input bytes of the completed operations
 *   "pending"          operations pending now
 *   "arena_operations" completed operations that ran in arenas
 *   "gpu_operations"   completed operations that the executor reduced on a GPU
 *   "arena_bytes"      arena bytes that this process has allocated now
 *   "arena_limit"      bytes that this rank's arena can hold: --arena_bytes, or
 *                      less under a limit of address space (ulimit -v)
 */
int64_t maypole_counter(const char* name);

#ifdef __cplusplus
}
#endif

#endif /* MAYPOLE_H_ */
