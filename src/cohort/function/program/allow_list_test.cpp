// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/program/allow_list.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/jit_type.h>
#include <gtest/gtest.h>

#include <map>

namespace cohort::function {
namespace {

TEST(AllowList, HasWhatTrainingNeeds) {
  for (const std::string_view name : {"aten::mm",
                                      "aten::addmm",
                                      "aten::bmm",
                                      "aten::t",
                                      "aten::view",
                                      "aten::as_strided",
                                      "aten::convolution",
                                      "aten::convolution_backward",
                                      "aten::native_batch_norm",
                                      "aten::native_batch_norm_backward",
                                      "aten::max_pool2d_with_indices",
                                      "aten::max_pool2d_with_indices_backward",
                                      "aten::_log_softmax",
                                      "aten::_log_softmax_backward_data",
                                      "aten::nll_loss_forward",
                                      "aten::nll_loss_backward",
                                      "aten::native_layer_norm",
                                      "aten::embedding",
                                      "aten::embedding_dense_backward",
                                      "aten::index_put_",
                                      "aten::bernoulli_",
                                      "aten::uniform_",
                                      "aten::rand",
                                      "aten::randperm",
                                      "aten::empty",
                                      "aten::zeros",
                                      "aten::ones_like",
                                      "aten::detach",
                                      "aten::_unsafe_view",
                                      "aten::_to_copy",
                                      "aten::copy_",
                                      "aten::sigmoid",
                                      "aten::tanh_backward",
                                      "aten::threshold_backward",
                                      "aten::_foreach_add_",
                                      "aten::_foreach_addcdiv_",
                                      "aten::sum",
                                      "aten::mean",
                                      "aten::split",
                                      "aten::unbind",
                                      "aten::cat",
                                      "aten::stack",
                                      "aten::_thnn_fused_lstm_cell",
                                      "aten::_softmax",
                                      "aten::gelu_backward",
                                      "aten::mse_loss_backward",
                                      "aten::linalg_solve",
                                      "aten::_linalg_check_errors",
                                      "aten::linalg_qr",
                                      "aten::_sparse_coo_tensor_with_dims_and_tensors",
                                      "aten::_coalesce",
                                      "aten::_values",
                                      "aten::_indices",
                                      "aten::where",
                                      "aten::masked_fill",
                                      "aten::all"}) {
    EXPECT_TRUE(is_allowed_op(name)) << name;
  }
}

TEST(AllowList, HasTheLibrarysOwn) {
  EXPECT_TRUE(is_allowed_op("cohort::apply"));
  EXPECT_TRUE(is_allowed_op("cohort::iterator_next"));
  EXPECT_FALSE(is_allowed_op("cohort::system"));
}

TEST(AllowList, LeavesOutWhatReachesBeyondTensors) {
  for (const std::string_view name : {"aten::from_file",
                                      "aten::set_",
                                      "aten::set_data",
                                      "aten::resize_",
                                      "aten::resize_as_",
                                      "aten::_reshape_alias",
                                      "aten::_index_put_impl_",
                                      "aten::_sparse_coo_tensor_unsafe",
                                      "aten::record_stream",
                                      "aten::_local_scalar_dense",
                                      "aten::item",
                                      "aten::nonzero",
                                      "aten::is_nonzero",
                                      "quantized::linear",
                                      "prim::Print",
                                      "aten::",
                                      "aten",
                                      "",
                                      "mm",
                                      "aten::mm ",
                                      "aten::mmm",
                                      "static_runtime::clamp_nan_to_num"}) {
    EXPECT_FALSE(is_allowed_op(name)) << name;
  }
}

bool gives_tensors_only(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    const c10::TypePtr& type = result.type();
    if (!type->isSubtypeOf(*c10::TensorType::get()) &&
        !type->isSubtypeOf(*c10::ListType::ofTensors()))
      return false;
  }
  return true;
}

TEST(AllowList, NamesOnlyOpsThatCanGiveTensors) {
  std::map<std::string, bool> can_give_tensors;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (op && is_allowed_op(name.name))
      can_give_tensors[name.name] |= gives_tensors_only(op->schema());
  }
  EXPECT_GT(can_give_tensors.size(), 900U);
  for (const auto& [name, can] : can_give_tensors) EXPECT_TRUE(can) << name;
}

}  // namespace
}  // namespace cohort::function
