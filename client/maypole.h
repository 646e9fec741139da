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
 * Units: bytes, milliseconds. Memory given to maypole_submit() must stay valid
 * and (the output) untouched until the operation is done.
 *
 * All functions that return maypole_status set the calling thread's
 * maypole_last_error() when they do not return MAYPOLE_OK.
 */
#ifndef MAYPOLE_H_
#define MAYPOLE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MAYPOLE_ABI_VERSION 3
#define MAYPOLE_MAX_DIMS 8

/* gRPC's codes. */
typedef enum {
  MAYPOLE_OK = 0,
  MAYPOLE_CANCELLED = 1, /* a signal interrupted the wait: call again */
  MAYPOLE_UNKNOWN = 2,
  MAYPOLE_INVALID_ARGUMENT = 3,  /* this call's arguments; nothing was done */
  MAYPOLE_DEADLINE_EXCEEDED = 4, /* the wait's timeout; the operation goes on */
  MAYPOLE_NOT_FOUND = 5,         /* no such handle */
  MAYPOLE_ALREADY_EXISTS = 6,    /* an operation of this name is pending */
  MAYPOLE_PERMISSION_DENIED = 7,
  MAYPOLE_RESOURCE_EXHAUSTED = 8,
  MAYPOLE_FAILED_PRECONDITION = 9, /* mismatch between ranks; not initialized */
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

/* Zero-initialize, set struct_size and what the kind needs.
 *
 *   kind           shape                   result
 *   allreduce      equal on all ranks      output, of that shape
 *   broadcast      equal on all ranks      output, of that shape
 *   allgather      [rows, ...]: rows may   maypole_result(): all rows, by rank
 *                  differ by rank
 *   reducescatter  [rows, ...]             output: this rank's rows of the
 *                                          reduced tensor. Each of the n ranks
 *                                          gets rows / n, the first rows % n
 *                                          ranks one more
 *   alltoall       [rows, ...]: rows may   maypole_result(): the rows from
 *                  differ by rank          rank 0, from rank 1, ...; see
 *                                          maypole_received_splits()
 *   barrier        none                    none
 *   join           none                    maypole_result(): *first_dim is the
 *                                          rank that joined last
 *
 * Join: this rank has no more inputs. Until all ranks have joined, operations
 * of the others go on: to a reduction it brings what changes nothing (average
 * still divides by all ranks), to allgather and alltoall no rows; what it would
 * get is dropped. A broadcast from it is an error. It submits nothing before
 * its join has ended.
 *
 * Reductions: sum, average (not of bool; integers truncate toward zero), min,
 * max, product; reducescatter sums or averages. Of bool, sum and max are or,
 * product and min are and. Integers wrap; NaN wins min and max. */
typedef struct {
  size_t struct_size;  /* sizeof(maypole_operation) */
  int32_t kind;        /* maypole_kind */
  int32_t dtype;       /* maypole_dtype */
  int32_t op;          /* maypole_op; allreduce, reducescatter */
  int32_t device;      /* 0: host memory. GPUs are not there yet. */
  int32_t process_set; /* 0: all ranks; or of maypole_process_set_add() */
  int32_t root;        /* global rank; broadcast */
  int32_t dims;        /* 0 (scalar) .. MAYPOLE_MAX_DIMS */
  int32_t awaited;     /* 1: maypole_wait() comes next (a hint: nobody else
                          need attend to the operation meanwhile) */
  int64_t shape[MAYPOLE_MAX_DIMS];
  double prescale;       /* reductions: inputs are multiplied by it; 1.0 */
  double postscale;      /* reductions: the result is multiplied by it; 1.0 */
  const char* name;      /* NULL: unnamed, matched by order of submission
                            within its process set and kind */
  const void* input;     /* contiguous, row major */
  void* output;          /* same size as input and may be input (in place).
                            Broadcast: used on every rank, input only on
                            root. Reducescatter: this rank's rows; must not
                            overlap input. Allgather, alltoall: NULL; see
                            maypole_result(). */
  const int64_t* splits; /* alltoall: rows of input for each rank of the
                            process set, in the order of ranks; their sum is
                            shape[0]. NULL: equal parts */
  int32_t splits_count;  /* the process set's size; 0 if splits is NULL */
  int32_t reserved;
} maypole_operation;

#define MAYPOLE_EXCHANGE_BYTES 8192

/* Carries values from rank 0 to ranks on other nodes, before there is any
 * connection between them; for launchers that libmaypole does not know itself.
 * Both functions are called during maypole_init(), by its thread, and return a
 * maypole_status; not MAYPOLE_OK: `error` says what happened. */
typedef struct {
  size_t struct_size; /* sizeof(maypole_exchange) */
  void* context;      /* handed to the functions */
  int (*put)(void* context, const char* key, const char* value, char* error,
             int error_bytes);
  /* MAYPOLE_DEADLINE_EXCEEDED: nobody has put it within timeout_ms. `value` has
   * room for value_bytes with the final 0. */
  int (*get)(void* context, const char* key, int timeout_ms, char* value,
             int value_bytes, char* error, int error_bytes);
} maypole_exchange;

/* Before maypole_init(). The struct is copied; NULL: none. */
maypole_status maypole_set_exchange(const maypole_exchange* exchange);

/* Finds this process's place in its job: from MAYPOLE_* (set by maypolerun), or
 * from what torchrun, mpirun or srun have set (docs/design.md section 8).
 * Without them this is a job of one rank, in process. Blocks until all ranks of
 * the job are there or the start timeout ends. Calling it twice is a no-op.
 * After maypole_shutdown() it joins the job's next epoch. */
maypole_status maypole_init(void);

/* Leaves the job. Operations still pending end with an error, here and on the
 * other ranks. A no-op when not initialized. */
maypole_status maypole_shutdown(void);
int maypole_is_initialized(void);

/* -1 when not initialized. */
int maypole_rank(void);
int maypole_size(void);
int maypole_local_rank(void);
int maypole_local_size(void);
int maypole_cross_rank(void);
int maypole_cross_size(void);
int maypole_is_homogeneous(void); /* every node has the same number of ranks */

maypole_status maypole_submit(const maypole_operation* operation,
                              int64_t* handle);

/* Submits all of them or, if one cannot be (an error in its arguments, a name
 * that is pending or comes twice), none: then the error names it and nothing
 * was done. handles[i] is that of operations[i]; each ends on its own. */
maypole_status maypole_submit_group(const maypole_operation* operations,
                                    int32_t count, int64_t* handles);

/* *done: 1 when the operation has ended (well or with an error). Moves data
 * along, so polling alone makes progress. */
maypole_status maypole_poll(int64_t handle, int* done);

/* Timeouts of maypole_wait() besides milliseconds. A signal that comes while
 * the thread moves data ends no sleep, so it does not end a wait without end.
 * With MAYPOLE_WAIT_INTERRUPTIBLE the wait returns MAYPOLE_CANCELLED at least
 * every 0.1 s while data moves: for callers that look at their signals between
 * calls, as interpreters do. */
#define MAYPOLE_WAIT_FOREVER (-1)
#define MAYPOLE_WAIT_INTERRUPTIBLE (-2)

/* Waits until the operation has ended, at most timeout_ms or as said above.
 * Returns the operation's outcome. MAYPOLE_DEADLINE_EXCEEDED and
 * MAYPOLE_CANCELLED (a signal handler ran) leave the operation going. */
maypole_status maypole_wait(int64_t handle, int timeout_ms);

/* Any of the three may be NULL. What an allgather or alltoall has brought:
 * memory of the library, valid until maypole_release(); *first_dim is its
 * number of rows. Of a reducescatter the output and this rank's rows; of other
 * kinds the output and the input's first dimension; of a join the last rank, of
 * a process set request its id. */
maypole_status maypole_result(int64_t handle, void** data, int64_t* bytes,
                              int64_t* first_dim);

/* Of an alltoall that has ended well: the rows that came from each rank of the
 * process set. count is the process set's size. */
maypole_status maypole_received_splits(int64_t handle, int64_t* splits,
                                       int32_t count);

/* Makes a process set of these ranks of the job (in any order, each once), or
 * removes one. Every rank of the job, member or not, must ask for the same in
 * the same order; the operation (wait, poll, release it) ends when all have.
 * maypole_result() gives the id as *first_dim: 1, 2, ... in the order of
 * requests, on every rank the same. Removing one needs that none of its
 * operations is pending. Sets end with the epoch (maypole_shutdown()). */
maypole_status maypole_process_set_add(const int32_t* ranks, int32_t count,
                                       int64_t* handle);
maypole_status maypole_process_set_remove(int32_t process_set, int64_t* handle);

/* Its size, and up to `capacity` of its ranks, ascending; -1: there is no such
 * set. */
int maypole_process_set_ranks(int32_t process_set, int32_t* ranks,
                              int32_t capacity);

/* Forgets the handle. An operation still pending goes on to its end, and its
 * memory must stay valid until then. */
maypole_status maypole_release(int64_t handle);

/* Memory of this rank that the other ranks of its node map too: an allreduce in
 * place on it, or on any part that starts at a multiple of 64 bytes, moves no
 * copies if all ranks of the node do so (prescale 1.0). What is written to it
 * is still seen by this rank alone, but for the results of operations.
 * Page aligned, zeroed. Ordinary memory where there is no arena (a job of one
 * rank; --arena_bytes=0). It lives until maypole_free(), also after
 * maypole_shutdown(). MAYPOLE_RESOURCE_EXHAUSTED: the arena (--arena_bytes of
 * the agent, or what ulimit -v leaves) or the machine's memory is full; nothing
 * was allocated. */
maypole_status maypole_allocate(uint64_t bytes, void** memory);

/* NULL: nothing happens. No operation may be pending on it. */
maypole_status maypole_free(void* memory);

/* The calling thread's last error, never NULL. */
const char* maypole_last_error(void);

/* Of the library: "MAJOR.MINOR.PATCH". */
const char* maypole_version(void);

/* Counters of this process, for tests and tuning. NULL-terminated names are
 * looked up; unknown ones give -1:
 *   "operations"       submitted
 *   "completed"        ended well
 *   "failed"           ended with an error
 *   "bytes"            of completed operations' inputs
 *   "pending"          now
 *   "arena_operations" completed ones that ran in arenas
 *   "arena_bytes"      allocated now, by this process
 *   "arena_limit"      bytes that this rank's arena can hold: those of
 *                      --arena_bytes, or less under a limit of address space
 */
int64_t maypole_counter(const char* name);

#ifdef __cplusplus
}
#endif

#endif /* MAYPOLE_H_ */
