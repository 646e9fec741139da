#include "client/frameworks/maypole_functions.h"

#include <dlfcn.h>

namespace maypole::frameworks {
namespace {

template <typename Function>
void FindOne(void* library, const char* name, Function* function,
             std::string* missing) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr) *missing = name;
}

}  // namespace

std::string Find(const char* path, Functions* functions) {
  // Never closed: the functions stay valid as long as the process lives.
  void* const library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) {
    return std::string("this process has not loaded ") + path;
  }
  std::string missing;
#define MAYPOLE_FIND(name) \
  FindOne(library, "maypole_" #name, &functions->name, &missing);
  MAYPOLE_FUNCTIONS(MAYPOLE_FIND)
#undef MAYPOLE_FIND
  if (missing.empty()) return missing;
  return std::string(path) + " has no " + missing +
         ": it is a libmaypole of another version than this library's";
}

maypole_status AwaitEnd(const Functions& functions, int64_t handle) {
  // The status of a wait does not say whether the operation has ended: each
  // may also be an operation's outcome.
  int ended = 0;
  while (functions.poll(handle, &ended) == MAYPOLE_OK && ended == 0) {
    functions.wait(handle, MAYPOLE_WAIT_FOREVER);
  }
  return functions.wait(handle, 0);
}

void CallWhenDone(const Functions& functions, int64_t handle, maypole_done done,
                  void* context) {
  if (functions.on_done(handle, done, context) == MAYPOLE_OK) return;
  done(context, handle, AwaitEnd(functions, handle));
}

}  // namespace maypole::frameworks
