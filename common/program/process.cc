#include "common/program/process.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <system_error>

#include "common/system/resource_limits.h"

namespace maypole {
namespace {

const char* terminated_program = "";

[[noreturn]] void Terminate() {
  const std::exception_ptr exception = std::current_exception();
  // No current exception: an exception left a noexcept function (gcc does not
  // always keep it), or a thread was not joined.
  if (exception == nullptr) {
    std::fprintf(stderr, "%s: ended by std::terminate()\n", terminated_program);
    std::abort();
  }
  try {
    std::rethrow_exception(exception);
  } catch (const std::system_error& e) {
    const int err = e.code().value();
    const Status s = err == EAGAIN ? ResourceStatus(err, Needs::kThread,
                                                    "cannot start a thread")
                                   : ErrnoStatus(err, "ended by an exception");
    std::fprintf(stderr, "%s: %s\n", terminated_program, s.message().c_str());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: ended by an exception: %s\n", terminated_program,
                 e.what());
  } catch (...) {
  }
  std::abort();
}

}  // namespace

void LeaveNoCore() {
  rlimit limit{};
  // The hard limit is unchanged, so that prlimit can enable core files for
  // debugging.
  if (getrlimit(RLIMIT_CORE, &limit) != 0) return;
  limit.rlim_cur = 0;
  setrlimit(RLIMIT_CORE, &limit);
}

void RaiseOpenFiles() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

void ExplainTermination(const char* program) {
  terminated_program = program;
  std::set_terminate(Terminate);
}

}  // namespace maypole
