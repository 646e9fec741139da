// StartThread: a thread inside a user's process.
//
// Thread contract: any thread may call it.
#ifndef MAYPOLE_COMMON_SYSTEM_THREAD_H_
#define MAYPOLE_COMMON_SYSTEM_THREAD_H_

#include <functional>
#include <thread>

#include "common/status.h"

namespace maypole {

// The new thread takes no signals: they are for the user's threads, whose
// handlers run and whose sleeps end. kResourceExhausted: there cannot be
// another thread; the text says which limit it is.
Status StartThread(std::function<void()> body, std::thread* thread);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_SYSTEM_THREAD_H_
