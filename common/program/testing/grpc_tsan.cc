// What tsan cannot see in tests with gRPC: Debian's gRPC library is not
// instrumented, so tsan does not know that a gRPC call happens before the
// callback, or the event of a completion queue, that it causes. It then reports
// everything that both touch, in gRPC's templates and in the callbacks that
// they call, as races. coordinator/core's tests with threads cover what the
// coordinator's callbacks call; our code that handles events is not called by
// gRPC's.
//
// Compiled into each test, because the runtime looks for it there first.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:grpc::internal::\n";
}
