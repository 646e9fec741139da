#include "client/tensorflow/shapes.h"

namespace maypole::tensorflow {
namespace {

class Shape {
 public:
  explicit Shape(TF_ShapeHandle* handle = tf.TF_NewShapeHandle())
      : handle_(handle) {}
  ~Shape() { tf.TF_DeleteShapeHandle(handle_); }
  Shape(const Shape&) = delete;
  Shape& operator=(const Shape&) = delete;
  operator TF_ShapeHandle*() const { return handle_; }

 private:
  TF_ShapeHandle* const handle_;
};

bool Ok(TF_Status* status) { return tf.TF_GetCode(status) == 0; }

// TensorFlow 2.8 has only the shapes of the first input and the first output.
// Outputs that are not set have an unknown shape, which Python narrows.
bool GetInput(TF_ShapeInferenceContext* context, int index, const Shape& to) {
  Status status;
  tf.TF_ShapeInferenceContextGetInput(context, index, to, status);
  return status.ok();
}

void SetOutput(TF_ShapeInferenceContext* context, int index,
               const Shape& shape) {
  Status status;
  tf.TF_ShapeInferenceContextSetOutput(context, index, shape, status);
}

TF_ShapeHandle* UnknownVector(TF_ShapeInferenceContext* context) {
  // -1 is TensorFlow's unknown dimension.
  return tf.TF_ShapeInferenceContextVectorFromSize(context,
                                                   static_cast<size_t>(-1));
}

void SetOtherRows(TF_ShapeInferenceContext* context, int index,
                  TF_Status* status) {
  Shape input;
  if (!GetInput(context, index, input) ||
      !tf.TF_ShapeInferenceContextRankKnown(context, input)) {
    return;
  }
  Shape rows(UnknownVector(context));
  const int64_t rank = tf.TF_ShapeInferenceContextRank(context, input);
  if (rank <= 1) {
    SetOutput(context, index, rows);
    return;
  }
  Shape rest;
  Shape output;
  tf.TF_ShapeInferenceContextSubshape(context, input, 1, rank, rest, status);
  if (!Ok(status)) return;
  tf.TF_ShapeInferenceContextConcatenateShapes(context, rows, rest, output,
                                               status);
  if (!Ok(status)) return;
  SetOutput(context, index, output);
}

}  // namespace

template <int others>
void SameShapes(TF_ShapeInferenceContext* context, TF_Status*) {
  const int64_t count = tf.TF_ShapeInferenceContextNumInputs(context) - others;
  for (int i = 0; i < count; ++i) {
    Shape shape;
    if (!GetInput(context, i, shape)) return;
    SetOutput(context, i, shape);
  }
}

template <int others>
void OtherRows(TF_ShapeInferenceContext* context, TF_Status* status) {
  const int64_t count = tf.TF_ShapeInferenceContextNumInputs(context) - others;
  for (int i = 0; i < count && Ok(status); ++i) {
    SetOtherRows(context, i, status);
  }
}

template void SameShapes<0>(TF_ShapeInferenceContext*, TF_Status*);
template void SameShapes<1>(TF_ShapeInferenceContext*, TF_Status*);
template void OtherRows<0>(TF_ShapeInferenceContext*, TF_Status*);
template void OtherRows<1>(TF_ShapeInferenceContext*, TF_Status*);

void RowsAndSplits(TF_ShapeInferenceContext* context, TF_Status* status) {
  SetOtherRows(context, 0, status);
  if (!Ok(status)) return;
  Shape splits(UnknownVector(context));
  SetOutput(context, 1, splits);
}

void Scalar(TF_ShapeInferenceContext* context, TF_Status*) {
  Shape scalar(tf.TF_ShapeInferenceContextScalar(context));
  SetOutput(context, 0, scalar);
}

void NoOutputs(TF_ShapeInferenceContext*, TF_Status*) {}

}  // namespace maypole::tensorflow
