// SPDX-License-Identifier: Apache-2.0
// Layers and training steps of torch::nn as programs, against eager execution, bit for bit.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "cohort/function/autocast.h"
#include "cohort/function/tracer/cases_for_tests.h"

namespace cohort::function {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Features and labels.
Tensors batch(std::uint64_t seed, at::IntArrayRef sizes, std::int64_t classes) {
  auto labels = normal({sizes[0]}, seed + 7000).abs().mul(100).to(torch::kLong).remainder(classes);
  return {normal(sizes, seed), labels};
}

class TraceModules : public TraceCase {
 protected:
  // The gradients of the loss for all parameters of `module`, as outputs.
  template <class Module>
  TraceBody gradients(Module module, std::function<at::Tensor(Module&, const Tensors&)> loss) {
    register_local(*module);
    return [module, loss](const Tensors& inputs) mutable {
      for (auto& one : module->parameters()) one.mutable_grad() = at::Tensor();
      at::Tensor value = loss(module, inputs);
      value.backward();
      Tensors outputs{value.detach()};
      for (auto& one : module->parameters()) outputs.push_back(one.grad());
      return outputs;
    };
  }
  std::function<Tensors(std::uint64_t)> batches(std::vector<std::int64_t> sizes,
                                                std::int64_t classes) {
    return [=](std::uint64_t seed) { return batch(seed, sizes, classes); };
  }

  // Trains the module by `step`, and its program with copies of the variables; expects equal values
  // after each of 100 steps.
  template <class Module>
  void expect_equal_training(Module module, const TraceBody& step,
                             std::vector<std::int64_t> sizes) {
    register_local(*module);
    Traced result = traced(batch(0, sizes, 10), batch(1, sizes, 10), step);
    auto program = PreparedProgram::decode(result.bytes);
    Tensors registers = values_of(program->info());
    for (std::uint64_t i = 0; i < 100; ++i) {
      Tensors inputs = batch(i, sizes, 10);
      seed_default_generator(i);
      at::Tensor expected = step(inputs).at(0);
      ASSERT_TRUE(bits_equal(program->run(inputs, registers, host_, i).at(0), expected))
          << "loss of step " << i;
    }
    for (std::size_t i = 0; i < registers.size(); ++i) {
      const std::string& name = program->info().variables[i].name;
      EXPECT_TRUE(bits_equal(registers[i], tensors_.at(name).detach())) << name;
    }
  }
};

// w -= 0.1 gradient, in place.
void descend(const std::vector<at::Tensor>& parameters) {
  torch::NoGradGuard off;
  for (const at::Tensor& one : parameters) {
    one.sub_(one.grad(), 0.1);
    one.mutable_grad() = at::Tensor();
  }
}

TEST_F(TraceModules, PerceptronTrainsEqually) {
  nn::Sequential module(nn::Linear(64, 64), nn::ReLU(), nn::Linear(64, 64), nn::ReLU(),
                        nn::Linear(64, 10));
  expect_equal_training(module,
                        [module](const Tensors& in) mutable {
                          at::Tensor loss = F::cross_entropy(module->forward(in[0]), in[1]);
                          loss.backward();
                          descend(module->parameters());
                          return Tensors{loss.detach()};
                        },
                        {32, 64});
}

struct ConvolutionalImpl : nn::Module {
  nn::Conv2d first{register_module("first", nn::Conv2d(nn::Conv2dOptions(1, 4, 3).padding(1)))};
  nn::BatchNorm2d norm{register_module("norm", nn::BatchNorm2d(4))};
  nn::Conv2d second{register_module("second", nn::Conv2d(nn::Conv2dOptions(4, 4, 3)))};
  nn::Dropout dropout{register_module("dropout", nn::Dropout(0.25))};
  nn::Linear linear{register_module("linear", nn::Linear(4 * 6 * 6, 10))};
  at::Tensor forward(at::Tensor x) {
    x = torch::max_pool2d(torch::relu(norm(first(x))), 2);
    return linear(dropout(torch::relu(second(x)).flatten(1)));
  }
};
TORCH_MODULE(Convolutional);

TEST_F(TraceModules, ConvolutionsWithBatchNormAndDropoutTrainEqually) {
  Convolutional module;
  expect_equal_training(module,
                        [module](const Tensors& in) mutable {
                          at::Tensor loss = F::cross_entropy(module->forward(in[0]), in[1]);
                          loss.backward();
                          descend(module->parameters());
                          return Tensors{loss.detach()};
                        },
                        {16, 1, 16, 16});
}

TEST_F(TraceModules, MomentumInRegisteredSlotsTrainsEqually) {
  nn::Linear module(8, 10);
  Tensors slots;
  for (auto& one : module->parameters())
    slots.push_back(
        variable("slot" + std::to_string(slots.size()), torch::zeros_like(one.detach()), false));
  expect_equal_training(module,
                        [module, slots](const Tensors& in) mutable {
                          at::Tensor loss = F::cross_entropy(module->forward(in[0]), in[1]);
                          loss.backward();
                          auto parameters = module->parameters();
                          for (std::size_t i = 0; i < slots.size(); ++i)
                            slots[i].mul_(0.9).add_(parameters[i].grad());
                          torch::NoGradGuard off;
                          for (std::size_t i = 0; i < slots.size(); ++i) {
                            parameters[i].sub_(slots[i], 0.1);
                            parameters[i].mutable_grad() = at::Tensor();
                          }
                          return Tensors{loss.detach()};
                        },
                        {4, 8});
}

TEST_F(TraceModules, BatchNormStatisticsOnServersAreAssignedOnce) {
  nn::BatchNorm1d norm(3);
  for (auto& item : norm->named_parameters()) variable(item.key(), item.value());
  for (auto& item : norm->named_buffers()) variable(item.key(), item.value());
  auto body = [norm](const Tensors& in) mutable { return Tensors{norm->forward(in[0])}; };
  Traced result = traced({normal({4, 3}, 0)}, {normal({4, 3}, 1)}, body);
  EXPECT_TRUE(bits_equal(norm->running_mean, torch::zeros({3})));
  at::Tensor actual = replay(result, {normal({4, 3}, 2)})[0];
  at::Tensor expected = body({normal({4, 3}, 2)})[0];
  EXPECT_TRUE(bits_equal(actual, expected.detach()));
  ASSERT_EQ(host_.assigned.size(), 3);
  for (const auto& assigned : host_.assigned) {
    const std::string& name =
        result.info.variables[static_cast<std::size_t>(assigned.variable)].name;
    EXPECT_TRUE(bits_equal(assigned.value, tensors_.at(name).detach())) << name;
  }
}

TEST_F(TraceModules, BatchNormInEvaluationWritesNothing) {
  nn::BatchNorm1d norm(3);
  norm->eval();
  register_local(*norm);
  Traced result =
      traced({normal({4, 3}, 0)}, {normal({4, 3}, 1)},
             [norm](const Tensors& in) mutable { return Tensors{norm->forward(in[0])}; });
  ASSERT_EQ(result.info.variables.size(), 4U) << "weight, bias and the statistics that it reads";
  for (const auto& one : result.info.variables) EXPECT_FALSE(one.is_updated) << one.name;
  replay(result, {normal({4, 3}, 2)});
  EXPECT_TRUE(host_.assigned.empty());
}

TEST_F(TraceModules, Lstm) {
  nn::LSTM module(nn::LSTMOptions(5, 6).num_layers(2).bidirectional(true).dropout(0.2));
  expect_equal_to_eager(
      [](std::uint64_t seed) {
        return Tensors{normal({3, 2, 5}, seed)};
      },
      gradients<nn::LSTM>(module, [](nn::LSTM& one, const Tensors& in) {
        auto [output, state] = one->forward(in[0]);
        return output.pow(2).sum() + std::get<1>(state).sum();
      }));
}

TEST_F(TraceModules, Gru) {
  nn::GRU module(nn::GRUOptions(5, 6));
  expect_equal_to_eager(
      [](std::uint64_t seed) {
        return Tensors{normal({3, 2, 5}, seed)};
      },
      gradients<nn::GRU>(module, [](nn::GRU& one, const Tensors& in) {
        return std::get<0>(one->forward(in[0])).pow(2).sum();
      }));
}

TEST_F(TraceModules, TransformerLayer) {
  nn::TransformerEncoderLayer module(nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16));
  expect_equal_to_eager(
      [](std::uint64_t seed) {
        return Tensors{normal({3, 2, 8}, seed)};
      },
      gradients<nn::TransformerEncoderLayer>(
          module, [](nn::TransformerEncoderLayer& one, const Tensors& in) {
            return one->forward(in[0]).pow(2).sum();
          }));
}

TEST_F(TraceModules, LayerNorm) {
  nn::LayerNorm module(nn::LayerNormOptions({6}));
  expect_equal_to_eager(
      [](std::uint64_t seed) {
        return Tensors{normal({4, 6}, seed)};
      },
      gradients<nn::LayerNorm>(module, [](nn::LayerNorm& one, const Tensors& in) {
        return one->forward(in[0]).pow(3).sum();
      }));
}

Tensors ids(std::uint64_t seed) {
  return {normal({5, 2}, seed).abs().mul(10).to(torch::kLong).remainder(7)};
}

TEST_F(TraceModules, Embedding) {
  nn::Embedding module(7, 3);
  expect_equal_to_eager(ids,
                        gradients<nn::Embedding>(module, [](nn::Embedding& one, const Tensors& in) {
                          return one->forward(in[0]).pow(2).sum();
                        }));
}

TEST_F(TraceModules, EmbeddingWithSparseGradient) {
  nn::Embedding module(nn::EmbeddingOptions(7, 3).sparse(true));
  register_local(*module);
  expect_equal_to_eager(ids, [module](const Tensors& in) mutable {
    module->weight.mutable_grad() = at::Tensor();
    module->forward(in[0]).pow(2).sum().backward();
    at::Tensor rows = module->weight.grad().coalesce();
    return Tensors{rows.to_dense()};
  });
}

TEST_F(TraceModules, EmbeddingBag) {
  nn::EmbeddingBag module(7, 3);
  expect_equal_to_eager(
      ids, gradients<nn::EmbeddingBag>(module, [](nn::EmbeddingBag& one, const Tensors& in) {
        return one->forward(in[0]).pow(2).sum();
      }));
}

// F::embedding_bag checks the first and the last offset; so does the kernel, in every run.
TEST_F(TraceModules, BagsWithWrongOffsetsFailAsInEagerExecution) {
  nn::EmbeddingBag module(nn::EmbeddingBagOptions(7, 3).mode(torch::kSum));
  register_local(*module);
  for (const at::ScalarType dtype : {at::kLong, at::kInt}) {
    const at::Tensor rows = ids(0)[0].flatten().to(dtype);
    const auto inputs_of = [&](std::vector<std::int64_t> offsets) {
      return Tensors{rows, torch::tensor(offsets).to(dtype)};
    };
    const Tensors inputs = inputs_of({0, 4});
    const Traced result = traced(inputs, inputs_of({0, 5}), [&](const Tensors& in) {
      return Tensors{module->forward(in[0], in[1])};
    });
    EXPECT_TRUE(
        bits_equal(replay(result, inputs)[0], module->forward(inputs[0], inputs[1]).detach()));
    EXPECT_THROW(replay(result, inputs_of({1, 4})), Error);
    EXPECT_THROW(replay(result, inputs_of({0, 11})), Error);
  }
}

TEST_F(TraceModules, Losses) {
  nn::Linear module(6, 5);
  expect_equal_to_eager(
      batches({4, 6}, 5), gradients<nn::Linear>(module, [](nn::Linear& one, const Tensors& in) {
        at::Tensor y = one->forward(in[0]);
        at::Tensor target = torch::one_hot(in[1], 5).to(torch::kFloat);
        return F::cross_entropy(y, in[1]) + F::nll_loss(y.log_softmax(1), in[1]) +
               F::mse_loss(y, target) + F::l1_loss(y, target) + F::smooth_l1_loss(y, target) +
               F::huber_loss(y, target) + F::binary_cross_entropy_with_logits(y, target) +
               F::kl_div(y.log_softmax(1), target.softmax(1)) +
               F::cross_entropy(
                   y, in[1],
                   F::CrossEntropyFuncOptions().reduction(torch::kNone).label_smoothing(0.1))
                   .mean() +
               F::multi_margin_loss(y, in[1]) + F::soft_margin_loss(y, target * 2 - 1);
      }));
}

TEST_F(TraceModules, Activations) {
  nn::Linear module(6, 6);
  expect_equal_to_eager(batches({4, 6}, 5),
                        gradients<nn::Linear>(module, [](nn::Linear& one, const Tensors& in) {
                          at::Tensor y = one->forward(in[0]);
                          return (torch::gelu(y) + torch::silu(y) + torch::elu(y) + torch::selu(y) +
                                  torch::leaky_relu(y) + F::mish(y) + torch::softplus(y) +
                                  torch::hardtanh(y) + torch::log_sigmoid(y) + F::glu(y).sum())
                              .pow(2)
                              .sum();
                        }));
}

TEST_F(TraceModules, MoreLosses) {
  nn::Linear module(6, 5);
  expect_equal_to_eager(
      batches({4, 6}, 5), gradients<nn::Linear>(module, [](nn::Linear& one, const Tensors& in) {
        at::Tensor y = one->forward(in[0]);
        at::Tensor sign = (in[1] > 2).to(torch::kFloat) * 2 - 1;
        auto lengths = torch::full({1}, 2, torch::kLong);
        return F::triplet_margin_loss(y, y.flip(0), y.roll(1, 0)) +
               F::poisson_nll_loss(y, y.detach().abs()) +
               F::hinge_embedding_loss(y.select(1, 0), sign) +
               F::margin_ranking_loss(y.select(1, 0), y.select(1, 1), sign) +
               F::cosine_embedding_loss(y, y.flip(0), sign) +
               F::multilabel_soft_margin_loss(y, (y.detach() > 0).to(torch::kFloat)) +
               F::binary_cross_entropy(y.sigmoid(), (y.detach() > 0).to(torch::kFloat)) +
               F::pairwise_distance(y, y.flip(0)).sum() + F::cosine_similarity(y, y.flip(0)).sum() +
               F::normalize(y).sum() + torch::cdist(y, y.flip(0)).sum() +
               torch::ctc_loss(y.unsqueeze(1).log_softmax(2), torch::tensor({{1, 2}}),
                               at::IntArrayRef{4}, at::IntArrayRef{2}) +
               F::bilinear(y, y.flip(0), torch::ones({2, 5, 5}), torch::zeros({2})).sum() +
               lengths.sum();
      }));
}

TEST_F(TraceModules, LinearAlgebra) {
  expect_equal_to_eager({4, 4}, [](at::Tensor x) {
    at::Tensor y = x.clone().requires_grad_();
    at::Tensor s = y.matmul(y.t()) + 4 * torch::eye(4);
    at::Tensor value =
        torch::linalg_cholesky(s).sum() + torch::linalg_inv(s).sum() + torch::logdet(s) +
        torch::linalg_solve(s, y).sum() + std::get<0>(torch::linalg_eigh(s)).sum() +
        std::get<1>(torch::linalg_svd(s)).sum() + torch::linalg_det(s) + torch::trace(s) +
        std::get<0>(torch::linalg_qr(s)).sum() + torch::matrix_exp(y * 0.1).sum() +
        torch::bmm(s.unsqueeze(0), s.unsqueeze(0)).sum();
    return torch::autograd::grad({value}, {y})[0];
  });
}

TEST_F(TraceModules, AutocastToBfloat16) {
  nn::Linear module(6, 5);
  auto inner = gradients<nn::Linear>(module, [](nn::Linear& one, const Tensors& in) {
    set_autocast_enabled(true);
    at::Tensor y = one->forward(in[0]);
    EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
    at::Tensor loss =
        F::cross_entropy(one->forward(in[0]).to(torch::kFloat), in[1]) + y.to(torch::kFloat).mean();
    set_autocast_enabled(false);
    at::autocast::clear_cache();
    return loss;
  });
  expect_equal_to_eager(batches({4, 6}, 5), inner);
}

TEST_F(TraceModules, InferenceMode) {
  nn::Sequential module(nn::Linear(6, 6), nn::BatchNorm1d(6), nn::Linear(6, 2));
  module->eval();
  register_local(*module);
  expect_equal_to_eager(
      [](std::uint64_t seed) {
        return Tensors{normal({4, 6}, seed)};
      },
      [module](const Tensors& in) mutable {
        torch::InferenceMode guard;
        at::Tensor y = module->forward(in[0]);
        y.select(1, 0).add_(1);
        return Tensors{y.softmax(1).clone()};
      });
}

TEST_F(TraceModules, ZeroGradBeforeTheFirstUseNeedsTheLeavesListed) {
  nn::Linear module(3, 2);
  register_local(*module);
  options_.leaves = module->parameters();
  module->forward(torch::ones({1, 3})).sum().backward();
  auto body = [module](const Tensors& in) mutable {
    module->zero_grad();
    module->forward(in[0]).pow(2).sum().backward();
    return Tensors{module->weight.grad().clone()};
  };
  Traced result = traced({normal({4, 3}, 0)}, {normal({4, 3}, 1)}, body);
  EXPECT_TRUE(bits_equal(replay(result, {normal({4, 3}, 2)})[0], body({normal({4, 3}, 2)})[0]));
}

TEST_F(TraceModules, TorchOptimizersAreRefused) {
  nn::Linear module(3, 2);
  register_local(*module);
  torch::optim::Adam adam(module->parameters());
  EXPECT_THAT(refusal([&](at::Tensor x) {
                module->forward(x).sum().backward();
                adam.step();
                return x;
              }),
              AllOf(HasSubstr("keep optimizer state in variables"), HasSubstr("aten::mul_")));
}

TEST_F(TraceModules, ClipGradNormIsRefused) {
  nn::Linear module(3, 2);
  register_local(*module);
  EXPECT_THAT(refusal([&](at::Tensor x) {
                module->forward(x).sum().backward();
                nn::utils::clip_grad_norm_(module->parameters(), 1.0);
                return x;
              }),
              HasSubstr("aten::item"));
}

TEST_F(TraceModules, UnregisteredBatchNormBuffersAreRefused) {
  nn::BatchNorm1d norm(3);
  for (auto& item : norm->named_parameters()) variable(item.key(), item.value());
  EXPECT_THAT(refusal([&](at::Tensor x) { return norm->forward(x); }),
              HasSubstr("register parameters and buffers"));
}

TEST_F(TraceModules, BatchNormWithoutMomentumIsRefused) {
  nn::BatchNorm1d norm(nn::BatchNorm1dOptions(3).momentum(torch::nullopt));
  register_local(*norm);
  EXPECT_THAT(refusal([&](at::Tensor x) { return norm->forward(x); }),
              AllOf(HasSubstr("aten::item"), HasSubstr("give it a momentum")));
}

TEST_F(TraceModules, UnregisteredModulesAreRefused) {
  nn::Linear module(3, 2);
  EXPECT_THAT(refusal([&](at::Tensor x) { return module->forward(x); }),
              AllOf(HasSubstr("replicate()"), HasSubstr("float32[2, 3]")));
}

}  // namespace
}  // namespace cohort::function
