// What tsan cannot see in tests with gRPC: its library is Debian's, and not
// instrumented, so tsan does not know that a call of gRPC's happens before the
// callback, or the event of a completion queue, that it causes. It then takes
// all that both touch, in gRPC's templates and in the callbacks that they call,
// for races. coordinator/core's tests with threads cover what the coordinator's
// callbacks call; our code that handles events is not called by gRPC's.
//
// In the sources of each test, because the runtime looks for it there first.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:grpc::internal::\n";
}
