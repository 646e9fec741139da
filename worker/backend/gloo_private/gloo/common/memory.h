// What Gloo's tcp/pair.h and tcp/context.h include and Debian's libgloo-dev has
// not got: its references to unbound buffers, as far as the layout of Pair and
// Context needs them (a boxed std::weak_ptr, a boxed std::shared_ptr). Nothing
// of ours makes or uses one; gloo_mesh.cc checks the size that results.
#ifndef MAYPOLE_WORKER_BACKEND_GLOO_PRIVATE_GLOO_COMMON_MEMORY_H_
#define MAYPOLE_WORKER_BACKEND_GLOO_PRIVATE_GLOO_COMMON_MEMORY_H_

#include <memory>

namespace gloo {

template <typename T>
class NonOwningPtr final {
  std::shared_ptr<T> boxed_;
};

template <typename T>
class WeakNonOwningPtr final {
  std::weak_ptr<T> boxed_;
};

}  // namespace gloo

#endif  // MAYPOLE_WORKER_BACKEND_GLOO_PRIVATE_GLOO_COMMON_MEMORY_H_
