/* The C ABI, in C11 and through libmaypole.so: every function, every kind once.
 * Run by maypolerun with four ranks; each prints "c_abi: N checks" and ends
 * with 0, or says what was wrong and ends with 1. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/maypole.h"

static int checks;

#define CHECK(condition)                                                \
  do {                                                                  \
    ++checks;                                                           \
    if (!(condition)) {                                                 \
      fprintf(stderr, "WRONG: line %d: %s; last error: %s\n", __LINE__, \
              #condition, maypole_last_error());                        \
      exit(1);                                                          \
    }                                                                   \
  } while (0)

enum { kRanks = 4 };

static int rank;

static maypole_operation Operation(maypole_kind kind, maypole_dtype dtype,
                                   const char* name, int64_t rows,
                                   const void* input, void* output) {
  maypole_operation o;
  memset(&o, 0, sizeof o);
  o.struct_size = sizeof o;
  o.kind = (int32_t)kind;
  o.dtype = (int32_t)dtype;
  o.op = MAYPOLE_SUM;
  o.dims = 1;
  o.shape[0] = rows;
  o.prescale = 1.0;
  o.postscale = 1.0;
  o.name = name;
  o.input = input;
  o.output = output;
  return o;
}

static int64_t Submit(const maypole_operation* o) {
  int64_t handle = 0;
  CHECK(maypole_submit(o, &handle) == MAYPOLE_OK);
  return handle;
}

static void Finish(int64_t handle) {
  CHECK(maypole_wait(handle, -1) == MAYPOLE_OK);
  CHECK(maypole_release(handle) == MAYPOLE_OK);
}

static void Run(const maypole_operation* o) { Finish(Submit(o)); }

static int Contains(const char* text, const char* part) {
  return strstr(text, part) != NULL;
}

static void Sleep(int ms) {
  struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
  nanosleep(&t, NULL);
}

static void Barrier(void) {
  maypole_operation o =
      Operation(MAYPOLE_BARRIER, MAYPOLE_UINT8, NULL, 0, NULL, NULL);
  o.dims = 0;
  Run(&o);
}

static void Allreduce(void) {
  int32_t x[2] = {rank, 10};
  int32_t sum[2];
  maypole_operation o =
      Operation(MAYPOLE_ALLREDUCE, MAYPOLE_INT32, "sum", 2, x, sum);
  Run(&o);
  CHECK(sum[0] == 6 && sum[1] == 40 && x[0] == rank);

  float y = (float)rank;
  o = Operation(MAYPOLE_ALLREDUCE, MAYPOLE_FLOAT32, "average", 0, &y, &y);
  o.dims = 0; /* a scalar */
  o.op = MAYPOLE_AVERAGE;
  o.prescale = 2.0;
  o.postscale = 0.5;
  o.awaited = 1;
  Run(&o);
  CHECK(y == 1.5f);

  uint8_t bits[2] = {rank == 2, rank != 2};
  o = Operation(MAYPOLE_ALLREDUCE, MAYPOLE_BOOL, NULL, 2, bits, bits);
  o.op = MAYPOLE_PRODUCT;
  Run(&o);
  CHECK(bits[0] == 0 && bits[1] == 0);
}

static void Group(void) {
  int64_t small = rank, great = rank;
  maypole_operation group[2] = {
      Operation(MAYPOLE_ALLREDUCE, MAYPOLE_INT64, "min", 1, &small, &small),
      Operation(MAYPOLE_ALLREDUCE, MAYPOLE_INT64, "max", 1, &great, &great)};
  group[0].op = MAYPOLE_MIN;
  group[1].op = MAYPOLE_MAX;
  int64_t handles[2];
  /* Refused whole: the same names again are then free. */
  group[1].dims = MAYPOLE_MAX_DIMS + 1;
  CHECK(maypole_submit_group(group, 2, handles) == MAYPOLE_INVALID_ARGUMENT);
  group[1].dims = 1;
  CHECK(maypole_submit_group(group, 2, handles) == MAYPOLE_OK);
  Finish(handles[1]);
  Finish(handles[0]);
  CHECK(small == 0 && great == kRanks - 1);
}

static void Broadcast(void) {
  double x[3] = {rank, rank + 0.5, 0};
  maypole_operation o =
      Operation(MAYPOLE_BROADCAST, MAYPOLE_FLOAT64, "broadcast", 3, x, x);
  o.root = 2;
  Run(&o);
  CHECK(x[0] == 2 && x[1] == 2.5 && x[2] == 0);
}

static void Allgather(void) {
  int16_t mine[kRanks] = {0};
  for (int i = 0; i < rank; ++i) mine[i] = (int16_t)(10 * rank + i);
  maypole_operation o =
      Operation(MAYPOLE_ALLGATHER, MAYPOLE_INT16, "gather", rank, mine, NULL);
  int64_t handle = Submit(&o);
  CHECK(maypole_wait(handle, -1) == MAYPOLE_OK);
  void* data = NULL;
  int64_t bytes = 0, rows = 0;
  CHECK(maypole_result(handle, &data, &bytes, &rows) == MAYPOLE_OK);
  CHECK(rows == 6 && bytes == 12);
  const int16_t want[6] = {10, 20, 21, 30, 31, 32};
  CHECK(memcmp(data, want, sizeof want) == 0);
  CHECK(maypole_release(handle) == MAYPOLE_OK);
}

static void Reducescatter(void) {
  int32_t x[5] = {1, 2, 3, 4, 5}, mine[2] = {-1, -1};
  maypole_operation o =
      Operation(MAYPOLE_REDUCESCATTER, MAYPOLE_INT32, "scatter", 5, x, mine);
  int64_t handle = Submit(&o);
  CHECK(maypole_wait(handle, -1) == MAYPOLE_OK);
  void* data = NULL;
  int64_t bytes = 0, rows = 0;
  CHECK(maypole_result(handle, &data, &bytes, &rows) == MAYPOLE_OK);
  CHECK(rows == (rank == 0 ? 2 : 1) && bytes == 4 * rows && data == mine);
  CHECK(mine[0] == (rank == 0 ? 4 : 4 * (rank + 2)));
  CHECK(mine[1] == (rank == 0 ? 8 : -1));
  CHECK(maypole_release(handle) == MAYPOLE_OK);
}

/* Rank r sends j rows to rank j, each with 10 r + j. */
static void Alltoall(void) {
  int8_t x[6];
  int64_t splits[kRanks];
  for (int j = 0, n = 0; j < kRanks; ++j) {
    splits[j] = j;
    for (int i = 0; i < j; ++i) x[n++] = (int8_t)(10 * rank + j);
  }
  maypole_operation o =
      Operation(MAYPOLE_ALLTOALL, MAYPOLE_INT8, "exchange", 6, x, NULL);
  o.splits = splits;
  o.splits_count = kRanks;
  int64_t handle = Submit(&o);
  memset(splits, 0, sizeof splits); /* the call has read them */
  CHECK(maypole_wait(handle, -1) == MAYPOLE_OK);
  void* data = NULL;
  int64_t bytes = 0, rows = 0;
  CHECK(maypole_result(handle, &data, &bytes, &rows) == MAYPOLE_OK);
  CHECK(rows == kRanks * rank && bytes == rows);
  CHECK(maypole_received_splits(handle, splits, 3) == MAYPOLE_INVALID_ARGUMENT);
  CHECK(maypole_received_splits(handle, splits, kRanks) == MAYPOLE_OK);
  for (int from = 0; from < kRanks; ++from) {
    CHECK(splits[from] == rank);
    for (int i = 0; i < rank; ++i) {
      CHECK(((int8_t*)data)[from * rank + i] == 10 * from + rank);
    }
  }
  CHECK(maypole_release(handle) == MAYPOLE_OK);
}

static int32_t SetId(int64_t handle) {
  void* data = NULL;
  int64_t bytes = 0, id = 0;
  CHECK(maypole_wait(handle, -1) == MAYPOLE_OK);
  CHECK(maypole_result(handle, &data, &bytes, &id) == MAYPOLE_OK);
  CHECK(maypole_release(handle) == MAYPOLE_OK);
  return (int32_t)id;
}

static void ProcessSets(void) {
  const int32_t members[2] = {3, 1};
  int64_t handle = 0;
  CHECK(maypole_process_set_add(members, 2, &handle) == MAYPOLE_OK);
  const int32_t set = SetId(handle);
  CHECK(set == 1);
  int32_t ranks[2] = {-1, -1};
  CHECK(maypole_process_set_ranks(set, ranks, 1) == 2);
  CHECK(ranks[0] == 1 && ranks[1] == -1);
  CHECK(maypole_process_set_ranks(set, ranks, 2) == 2 && ranks[1] == 3);
  CHECK(maypole_process_set_ranks(0, NULL, 0) == kRanks);
  CHECK(maypole_process_set_ranks(77, NULL, 0) == -1);

  uint16_t x = (uint16_t)rank;
  maypole_operation o =
      Operation(MAYPOLE_ALLREDUCE, MAYPOLE_UINT16, "in the set", 1, &x, &x);
  o.process_set = set;
  if (rank % 2 == 1) {
    Run(&o);
    CHECK(x == 4);
  } else {
    maypole_status s = maypole_submit(&o, &handle);
    if (s == MAYPOLE_OK) s = maypole_wait(handle, -1);
    CHECK(s == MAYPOLE_INVALID_ARGUMENT);
  }
  CHECK(maypole_process_set_remove(set, &handle) == MAYPOLE_OK);
  Finish(handle);
  CHECK(maypole_process_set_ranks(set, ranks, 2) == -1);
}

/* Errors of one call, of one rank, and of all. */
static void Errors(void) {
  int32_t x = 1;
  int64_t handle = 0;
  maypole_operation o =
      Operation(MAYPOLE_ALLREDUCE, MAYPOLE_INT32, "wrong", 1, &x, &x);
  o.struct_size = 8;
  CHECK(maypole_submit(&o, &handle) == MAYPOLE_INVALID_ARGUMENT);
  CHECK(Contains(maypole_last_error(), "struct_size"));
  CHECK(maypole_submit(NULL, &handle) == MAYPOLE_INVALID_ARGUMENT);
  CHECK(maypole_wait(987654321, 0) == MAYPOLE_NOT_FOUND);

  /* Rank 0 alone: it must wait, and cannot submit the name again. */
  o = Operation(MAYPOLE_ALLREDUCE, MAYPOLE_INT32, "twice", 1, &x, &x);
  if (rank == 0) {
    int64_t again = 0;
    int done = 1;
    handle = Submit(&o);
    CHECK(maypole_submit(&o, &again) == MAYPOLE_ALREADY_EXISTS);
    CHECK(Contains(maypole_last_error(), "twice"));
    CHECK(maypole_wait(handle, 10) == MAYPOLE_DEADLINE_EXCEEDED);
    CHECK(maypole_poll(handle, &done) == MAYPOLE_OK && done == 0);
    CHECK(maypole_counter("pending") == 1);
  }
  Barrier();
  if (rank != 0) handle = Submit(&o);
  Finish(handle);
  CHECK(x == kRanks);

  o = Operation(MAYPOLE_ALLREDUCE, MAYPOLE_INT32, "unequal", rank == 3 ? 0 : 1,
                &x, &x);
  handle = Submit(&o);
  CHECK(maypole_wait(handle, -1) == MAYPOLE_FAILED_PRECONDITION);
  CHECK(Contains(maypole_last_error(), "unequal") &&
        Contains(maypole_last_error(), "[1]") &&
        Contains(maypole_last_error(), "rank 3 submitted [0]"));
  CHECK(maypole_release(handle) == MAYPOLE_OK && x == kRanks);
}

static _Atomic int calls;
static int64_t called_for[3];

static void Count(void* context, int64_t handle, maypole_status status) {
  CHECK(context == called_for);
  CHECK(status == (calls < 2 ? MAYPOLE_OK : MAYPOLE_FAILED_PRECONDITION));
  if (status != MAYPOLE_OK) CHECK(Contains(maypole_last_error(), "differs"));
  called_for[calls] = handle;
  CHECK(maypole_release(handle) == MAYPOLE_OK);
  ++calls;
}

static void AwaitCalls(int count) {
  for (int ms = 0; calls < count && ms < 30000; ++ms) Sleep(1);
  CHECK(calls == count);
}

/* Of three operations, without a wait: pending, ended, failed. */
static void Callbacks(void) {
  int64_t x[2] = {rank, 1}, y = 0;
  maypole_operation o =
      Operation(MAYPOLE_ALLREDUCE, MAYPOLE_INT64, "called", 2, x, x);
  const int64_t first = Submit(&o);
  CHECK(maypole_on_done(first, NULL, NULL) == MAYPOLE_INVALID_ARGUMENT);
  CHECK(maypole_on_done(first, Count, called_for) == MAYPOLE_OK);
  AwaitCalls(1);
  CHECK(called_for[0] == first && x[0] == 6 && x[1] == kRanks);
  CHECK(maypole_on_done(first, Count, called_for) == MAYPOLE_NOT_FOUND);

  const int64_t second = Submit(&o);
  CHECK(maypole_wait(second, -1) == MAYPOLE_OK);
  CHECK(maypole_on_done(second, Count, called_for) == MAYPOLE_OK);
  AwaitCalls(2);
  CHECK(called_for[1] == second);

  o = Operation(MAYPOLE_ALLREDUCE, MAYPOLE_INT64, "differs", rank == 1, &y, &y);
  CHECK(maypole_on_done(Submit(&o), Count, called_for) == MAYPOLE_OK);
  AwaitCalls(3);
}

/* Rank 3 has more inputs than the others. */
static void Join(void) {
  if (rank == 3) {
    float x = 8;
    maypole_operation o =
        Operation(MAYPOLE_ALLREDUCE, MAYPOLE_FLOAT32, "uneven", 1, &x, &x);
    o.op = MAYPOLE_AVERAGE;
    Run(&o);
    CHECK(x == 2);
    Sleep(300);
  }
  maypole_operation o =
      Operation(MAYPOLE_JOIN, MAYPOLE_UINT8, NULL, 0, NULL, NULL);
  o.dims = 0;
  int64_t handle = Submit(&o);
  CHECK(maypole_wait(handle, -1) == MAYPOLE_OK);
  void* data = NULL;
  int64_t bytes = 0, last = -1;
  CHECK(maypole_result(handle, &data, &bytes, &last) == MAYPOLE_OK);
  CHECK(last == 3);
  CHECK(maypole_release(handle) == MAYPOLE_OK);
}

static void Memory(void) {
  void* memory = NULL;
  CHECK(maypole_allocate(4096, &memory) == MAYPOLE_OK);
  CHECK(maypole_counter("arena_bytes") >= 4096);
  int32_t* x = memory;
  x[0] = rank;
  maypole_operation o =
      Operation(MAYPOLE_ALLREDUCE, MAYPOLE_INT32, "arena", 1024, x, x);
  Run(&o);
  CHECK(x[0] == 6 && x[1023] == 0);
  CHECK(maypole_free(memory) == MAYPOLE_OK);
  CHECK(maypole_free(NULL) == MAYPOLE_OK);
  CHECK(maypole_free_on_gpu(NULL, NULL, 0) == MAYPOLE_OK);
  CHECK(maypole_free_on_gpu(NULL, NULL, 1) == MAYPOLE_INVALID_ARGUMENT);
  CHECK(maypole_free_on_gpu(&memory, NULL, 0) == MAYPOLE_INVALID_ARGUMENT);
  CHECK(maypole_allocate_on_gpu(1, 0, NULL) == MAYPOLE_INVALID_ARGUMENT);
}

int main(void) {
  CHECK(maypole_is_initialized() == 0 && maypole_rank() == -1);
  CHECK(maypole_change_wanted() == -1 && maypole_leave_epoch() == MAYPOLE_OK &&
        maypole_abandon_epoch() == MAYPOLE_OK);
  int64_t handle = 0;
  CHECK(maypole_process_set_remove(1, &handle) == MAYPOLE_FAILED_PRECONDITION);
  CHECK(maypole_init() == MAYPOLE_OK && maypole_init() == MAYPOLE_OK);
  rank = maypole_rank();
  CHECK(maypole_size() == kRanks && rank >= 0 && rank < kRanks);
  CHECK(maypole_local_size() * maypole_cross_size() == kRanks);
  CHECK(maypole_cross_rank() * maypole_local_size() + maypole_local_rank() ==
        rank);
  CHECK(maypole_is_homogeneous() == 1 && maypole_is_initialized() == 1);
  CHECK(maypole_change_wanted() == 0);  // the job is not elastic
  maypole_set_finished(1);
  CHECK(strlen(maypole_version()) > 0);
  Allreduce();
  Group();
  Broadcast();
  Allgather();
  Reducescatter();
  Alltoall();
  ProcessSets();
  Barrier();
  Errors();
  Callbacks();
  Join();
  Memory();
  Barrier();
  CHECK(maypole_counter("pending") == 0 && maypole_counter("nothing") == -1);
  CHECK(maypole_counter("operations") ==
        maypole_counter("completed") + maypole_counter("failed"));
  CHECK(maypole_counter("failed") >= 1 && maypole_counter("bytes") > 0);
  CHECK(maypole_shutdown() == MAYPOLE_OK && maypole_is_initialized() == 0);
  CHECK(maypole_init() == MAYPOLE_OK);
  Allreduce();
  CHECK(maypole_shutdown() == MAYPOLE_OK);
  printf("c_abi: %d checks\n", checks);
  return 0;
}
