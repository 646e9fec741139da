// Kernel: the attributes of one node of a graph, which are constant.
//
// Thread contract: made by TensorFlow when it first needs the node's kernel;
// const afterwards.
#ifndef MAYPOLE_CLIENT_TENSORFLOW_KERNEL_H_
#define MAYPOLE_CLIENT_TENSORFLOW_KERNEL_H_

#include <cstdint>
#include <string>

#include "client/frameworks/maypole_functions.h"
#include "client/tensorflow/tensorflow_api.h"

namespace maypole::tensorflow {

// libmaypole's functions; null until maypole_tensorflow_connect().
extern frameworks::Functions library;

struct Kernel {
  maypole_kind kind;
  std::string name;  // empty: unnamed
  int32_t process_set = 0;
  int32_t reduction = 0;
  int32_t root_rank = 0;
  double prescale = 1.0;
  double postscale = 1.0;

  // The member's name in a group of `count`; empty: unnamed.
  std::string MemberName(int member, int count) const;
  bool Reduces() const {
    return kind == MAYPOLE_ALLREDUCE || kind == MAYPOLE_REDUCESCATTER;
  }
  // Whether the size of a result is known only when the operation has ended.
  bool Gathers() const {
    return kind == MAYPOLE_ALLGATHER || kind == MAYPOLE_ALLTOALL;
  }

  // The attributes are those of registration.cc. Returns null, and fails the
  // construction, if one cannot be read.
  static Kernel* Create(maypole_kind kind, TF_OpKernelConstruction* node);
};

}  // namespace maypole::tensorflow

#endif  // MAYPOLE_CLIENT_TENSORFLOW_KERNEL_H_
