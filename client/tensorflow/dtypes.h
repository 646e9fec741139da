// TensorFlow's data types (TF_DataType) and libmaypole's.
#ifndef MAYPOLE_CLIENT_TENSORFLOW_DTYPES_H_
#define MAYPOLE_CLIENT_TENSORFLOW_DTYPES_H_

#include <cstddef>

#include "client/maypole.h"

namespace maypole::tensorflow {

struct Dtype {
  int tensorflow;  // TF_DataType
  int maypole;     // maypole_dtype
  size_t bytes;    // of one element
};

// In the order of kTypes.
inline constexpr Dtype kDtypes[] = {
    {1, MAYPOLE_FLOAT32, 4}, {2, MAYPOLE_FLOAT64, 8}, {3, MAYPOLE_INT32, 4},
    {4, MAYPOLE_UINT8, 1},   {5, MAYPOLE_INT16, 2},   {6, MAYPOLE_INT8, 1},
    {9, MAYPOLE_INT64, 8},   {10, MAYPOLE_BOOL, 1},   {14, MAYPOLE_BFLOAT16, 2},
    {17, MAYPOLE_UINT16, 2}, {19, MAYPOLE_FLOAT16, 2}};

// For attributes: what the operations accept.
#define MAYPOLE_TENSORFLOW_TYPES                                               \
  "{float, double, int32, uint8, int16, int8, int64, bool, bfloat16, uint16, " \
  "half}"

// Null for a type that the operations do not accept; TensorFlow passes none.
inline const Dtype* FindDtype(int tensorflow) {
  for (const Dtype& dtype : kDtypes) {
    if (dtype.tensorflow == tensorflow) return &dtype;
  }
  return nullptr;
}

}  // namespace maypole::tensorflow

#endif  // MAYPOLE_CLIENT_TENSORFLOW_DTYPES_H_
