// What tsan cannot see in tests of the service: gRPC's library is Debian's, and
// not instrumented, so tsan does not know that a call of gRPC's happens before
// the callback that it causes. It then takes all that both touch, in gRPC's
// templates and in what they call, for races. coordinator/core's tests with
// threads cover what the callbacks call.
//
// In the sources of each test, because the runtime looks for it there first.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:grpc::internal::\n";
}
