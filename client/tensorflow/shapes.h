// Shape inference of the operations. Inputs that are not tensors of the
// collective (splits, a handle) come last.
#ifndef MAYPOLE_CLIENT_TENSORFLOW_SHAPES_H_
#define MAYPOLE_CLIENT_TENSORFLOW_SHAPES_H_

#include "client/tensorflow/tensorflow_api.h"

namespace maypole::tensorflow {

// Each output has its input's shape; `others` inputs have no output.
template <int others>
void SameShapes(TF_ShapeInferenceContext* context, TF_Status* status);
// As SameShapes, but the first dimension is unknown; a scalar becomes a vector.
template <int others>
void OtherRows(TF_ShapeInferenceContext* context, TF_Status* status);
// Two outputs: rows as OtherRows, and a vector.
void RowsAndSplits(TF_ShapeInferenceContext* context, TF_Status* status);
void Scalar(TF_ShapeInferenceContext* context, TF_Status* status);
void NoOutputs(TF_ShapeInferenceContext* context, TF_Status* status);

}  // namespace maypole::tensorflow

#endif  // MAYPOLE_CLIENT_TENSORFLOW_SHAPES_H_
