// StartThread: a thread inside a user's process.
//
// Thread contract: any thread may call it.
#ifndef MAYPOLE_COMMON_SYSTEM_THREAD_H_
#define MAYPOLE_COMMON_SYSTEM_THREAD_H_

#include <functional>
#include <thread>

#include "common/status.h"

namespace maypole {

// The new thread takes no signals: they must reach the user's threads, to run
// their handlers and interrupt their sleeps. kResourceExhausted: no further
// thread can be started; the text names the limit.
Status StartThread(std::function<void()> body, std::thread* thread);

}  // namespace maypole

#endif  // MAYPOLE_COMMON_SYSTEM_THREAD_H_
