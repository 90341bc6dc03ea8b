// SPDX-License-Identifier: Apache-2.0
// Gradients that travel in packs, and while the backward pass still runs, give the same bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/optimizer/optimizers.h"
#include "cohort/synchronous/whole_batch_fixture.h"
#include "cohort/synchronous/workers/workers_fixture.h"
#include "cohort/variable/variable_home.h"
#include "cohort/workers/early_gradients.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;
using testing::run_workers;
using testing::Tensors;
using testing::text_of;
using testing::WorkersOptions;

constexpr int kOverlappedSteps = 7;

at::Tensor random_tensor(const std::vector<std::int64_t>& sizes, std::uint64_t seed,
                         at::ScalarType type = at::kFloat) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(sizes, generator, at::TensorOptions(type));
}

// A network by chance: of the order of its variables, what is used several times, has rows of
// sparse gradients, or is used by some workers in some steps only.
class RandomNetwork {
 public:
  RandomNetwork(SynchronousStrategy& strategy, std::uint64_t seed)
      : seed_(seed), type_(seed % 4 == 3 ? at::kDouble : at::kFloat) {
    std::mt19937_64 random(seed);
    std::vector<std::pair<std::string, std::vector<std::int64_t>>> wanted = {
        {"first", {6, 8}}, {"tied", {8, 8}},  {"bias", {8}}, {"last", {8, 4}},   {"some", {5}},
        {"left", {3, 3}},  {"right", {3, 3}}, {"scale", {}}, {"table", {10, 6}}, {"never", {2}}};
    ties_ = 1 + static_cast<int>(random() % 3);
    std::shuffle(wanted.begin(), wanted.end(), random);
    for (const auto& [name, sizes] : wanted) {
      const at::Tensor value = 0.3 * random_tensor(sizes, seed + sizes.size(), type_);
      variables_.push_back(strategy.variable(name, value));
      by_name_.emplace(name, variables_.back());
    }
  }
  const std::vector<Variable>& variables() const { return variables_; }

  at::Tensor loss(int step, int replica) const {
    const auto seed = seed_ * 1000 + static_cast<std::uint64_t>(step * 10 + replica);
    const auto of = [&](const std::string& name) { return by_name_.at(name).tensor(); };
    const at::Tensor ids = at::arange(3) + (step + replica) % 5;
    at::Tensor x = random_tensor({5, 6}, seed, type_) +
                   at::embedding(of("table"), ids, -1, false, /*sparse=*/seed_ % 2 == 0).sum(0);
    x = at::tanh(x.matmul(of("first")));
    for (int i = 0; i < ties_; ++i) x = at::tanh(x.matmul(of("tied").t()) + of("bias"));
    at::Tensor loss = (x.matmul(of("last")) * of("scale")).square().mean();
    // The gradients of both are one tensor.
    loss = loss + (of("left") + of("right")).sum() * 0.1;
    if ((step + replica) % 3 == 0) loss = loss + of("some").square().sum();
    return loss;
  }

 private:
  const std::uint64_t seed_;
  const at::ScalarType type_;
  int ties_ = 1;
  std::vector<Variable> variables_;
  std::map<std::string, Variable> by_name_;
};

int replica_here() { return get_replica_context()->replica_id_in_sync_group(); }

Tensors values_trained(SynchronousStrategy& strategy, std::uint64_t seed) {
  const RandomNetwork network(strategy, seed);
  const Adam adam(network.variables(), {.learning_rate = 0.02});
  for (int step = 0; step < kOverlappedSteps; ++step)
    strategy.run([&] { adam.minimize(network.loss(step, replica_here())); });
  return testing::values_of(network.variables());
}

using TrainWorker = std::function<Tensors(MultiWorkerMirroredStrategy&)>;

// The result of each worker; none throws.
std::vector<Tensors> values_on_workers(int count, const WorkersOptions& options,
                                       const TrainWorker& train) {
  std::vector<Tensors> got(static_cast<std::size_t>(count));
  const auto errors = run_workers(count, options, [&](auto& strategy) {
    got[static_cast<std::size_t>(strategy.worker())] = train(strategy);
  });
  for (const auto& error : errors) EXPECT_EQ(text_of(error), "");
  return got;
}

void expect_bits_of(const std::vector<Tensors>& got, const Tensors& expected) {
  for (const Tensors& of_worker : got) {
    ASSERT_EQ(of_worker.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(of_worker[i].equal(expected[i])) << "tensor " << i;
  }
}

// Whether the next backward pass of this optimizer sends gradients early. In a replica.
bool is_sending_early(const Optimizer& optimizer) {
  const std::vector<Variable>& variables = optimizer.variables();
  const auto sink = variables.front().impl()->home()->gradient_sink(
      {optimizer.rule(), optimizer.name()}, variables);
  const auto* const pass = dynamic_cast<internal::EarlyPass*>(sink.get());
  return pass != nullptr && pass->sends();
}

TEST(OverlappedGradients, HaveTheBitsOfOneCall) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const int workers = 2 + static_cast<int>(seed % 3);
    const auto train = [&](auto& strategy) { return values_trained(strategy, seed); };
    const Tensors expected = values_on_workers(workers, {}, train).at(0);
    for (const std::int64_t bytes : {1, 200}) {
      for (const bool overlaps : {false, true}) {
        SCOPED_TRACE(::testing::Message() << bytes << " bytes, overlaps: " << overlaps);
        expect_bits_of(
            values_on_workers(workers, {.bytes_per_pack = bytes, .overlaps = overlaps}, train),
            expected);
      }
    }
  }
}

TEST(OverlappedGradients, HaveTheBitsOfOneProcess) {
  for (const int workers : {2, 4}) {
    MirroredStrategy one(testing::cpu_devices(workers));
    const Tensors expected = values_trained(one, 5);
    expect_bits_of(values_on_workers(workers, {.bytes_per_pack = 100, .overlaps = true},
                                     [](auto& strategy) { return values_trained(strategy, 5); }),
                   expected);
  }
}

TEST(OverlappedGradients, OfSeveralReplicasTravelAfterTheBackwardPass) {
  const auto train = [](auto& strategy) { return values_trained(strategy, 6); };
  const Tensors expected = values_on_workers(2, {.replicas = 2}, train).at(0);
  expect_bits_of(
      values_on_workers(2, {.replicas = 2, .bytes_per_pack = 100, .overlaps = true}, train),
      expected);
}

TEST(OverlappedGradients, RoundTheSameNumbersToBfloat16) {
  const auto train = [](auto& strategy) { return values_trained(strategy, 4); };
  const Tensors expected = values_on_workers(3, {.sends_bfloat16 = true}, train).at(0);
  expect_bits_of(values_on_workers(
                     3, {.sends_bfloat16 = true, .bytes_per_pack = 100, .overlaps = true}, train),
                 expected);
}

// Dense in all steps, so that each of several packs can be complete early.
struct SimpleNetwork {
  explicit SimpleNetwork(SynchronousStrategy& strategy)
      : a(strategy.variable("a", at::full({20}, 0.5))),
        b(strategy.variable("b", at::full({20}, 0.25))),
        sgd({a, b}, {.learning_rate = 0.125, .momentum = 0.5}) {}
  at::Tensor loss() const {
    return (a.tensor() * b.tensor()).square().sum() * (replica_here() + 1);
  }

  Variable a, b;
  SGD sgd;
};

constexpr std::int64_t kPack = 8;  // one variable each

// With little to send one call is faster, and with much, the passes begin to send.
TEST(OverlappedGradients, BeginWhenTheyAreLarge) {
  const auto sends_after = [](std::int64_t elements, std::int64_t bytes_per_pack, bool overlaps) {
    bool sends = false;
    const auto errors = run_workers(
        2, {.bytes_per_pack = bytes_per_pack, .overlaps = overlaps}, [&](auto& strategy) {
          const Variable v = strategy.variable("v", at::ones({elements}));
          const SGD sgd({v}, {.learning_rate = 0.5});
          for (int step = 0; step < 3; ++step)
            strategy.run([&] { sgd.minimize(v.tensor().sum()); });
          strategy.run([&] {
            const bool is_sending = is_sending_early(sgd);
            if (strategy.worker() == 0) sends = is_sending;
          });
        });
    for (const auto& error : errors) EXPECT_EQ(text_of(error), "");
    return sends;
  };
  EXPECT_FALSE(sends_after(1000, 0, true));
  EXPECT_TRUE(sends_after(1 << 18, 0, true));
  EXPECT_FALSE(sends_after(1 << 18, 0, false));
  EXPECT_TRUE(sends_after(1000, 100, true));
  EXPECT_FALSE(sends_after(1000, 100, false));
  EXPECT_FALSE(sends_after(10, 100, true));
}

// Regression: after a write, gradients travelled after the pass again.
TEST(OverlappedGradients, TravelIfVariablesAreAssignedBetweenSteps) {
  const auto train = [](auto& strategy) {
    const SimpleNetwork net(strategy);
    for (int step = 0; step < kOverlappedSteps; ++step) {
      net.a.assign(net.a.read() / 2);
      if (step > 2) strategy.run([&] { EXPECT_TRUE(is_sending_early(net.sgd)); });
      strategy.run([&] { net.sgd.minimize(net.loss()); });
    }
    return testing::values_of({net.a, net.b});
  };
  values_on_workers(2, {.bytes_per_pack = kPack, .overlaps = true}, train);
}

// One worker calls what minimize() consists of, so it sends nothing early: all send it again.
TEST(OverlappedGradients, MeetThoseOfWorkersThatDoNotOverlap) {
  const auto train = [](auto& strategy) {
    const SimpleNetwork net(strategy);
    for (int step = 0; step < kOverlappedSteps; ++step) {
      strategy.run([&] {
        if (step % 3 == 2 && strategy.worker() == 1) {
          net.sgd.apply_gradients(net.sgd.compute_gradients(net.loss()));
        } else {
          net.sgd.minimize(net.loss());
        }
      });
    }
    strategy.run([&] { EXPECT_TRUE(is_sending_early(net.sgd)); });
    return testing::values_of({net.a, net.b});
  };
  const auto plain = [](auto& strategy) {
    const SimpleNetwork net(strategy);
    for (int step = 0; step < kOverlappedSteps; ++step)
      strategy.run([&] { net.sgd.minimize(net.loss()); });
    return testing::values_of({net.a, net.b});
  };
  const Tensors expected = values_on_workers(3, {}, plain).at(0);
  // The steps after such a one overlap again: 7 steps end with one that does.
  expect_bits_of(values_on_workers(3, {.bytes_per_pack = kPack, .overlaps = true}, train),
                 expected);
}

// Regression: hooks of variables were left out. The gradient of `a` is complete after them.
TEST(OverlappedGradients, AreThoseThatHooksHaveChanged) {
  const auto train = [](auto& strategy) {
    const SimpleNetwork net(strategy);
    strategy.run([&] {
      net.a.tensor().register_hook([](const at::Tensor& gradient) { return gradient * 0.5; });
    });
    for (int step = 0; step < kOverlappedSteps; ++step)
      strategy.run([&] { net.sgd.minimize(net.loss()); });
    strategy.run([&] { EXPECT_TRUE(is_sending_early(net.sgd)); });
    return testing::values_of({net.a, net.b});
  };
  const auto plain = [](auto& strategy) {
    const SimpleNetwork net(strategy);
    for (int step = 0; step < kOverlappedSteps; ++step) {
      strategy.run([&] {
        auto gradients = net.sgd.compute_gradients(net.loss());
        gradients[0].first = gradients[0].first * 0.5;
        net.sgd.apply_gradients(gradients);
      });
    }
    return testing::values_of({net.a, net.b});
  };
  expect_bits_of(values_on_workers(2, {.bytes_per_pack = kPack, .overlaps = true}, train),
                 values_on_workers(2, {}, plain).at(0));
}

TEST(OverlappedGradients, AllowClipping) {
  const auto train = [](auto& strategy) {
    const SimpleNetwork net(strategy);
    for (int step = 0; step < kOverlappedSteps; ++step) {
      strategy.run([&] {
        net.sgd.apply_gradients(
            clip_by_global_norm(net.sgd.compute_gradients(net.loss()), 0.5).gradients);
      });
    }
    return testing::values_of({net.a, net.b});
  };
  const Tensors expected = values_on_workers(2, {}, train).at(0);
  expect_bits_of(values_on_workers(2, {.bytes_per_pack = kPack, .overlaps = true}, train),
                 expected);
}

// The identity; its backward pass calls a function.
struct InBackward : torch::autograd::Function<InBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const std::function<void()>* call) {
    context->saved_data["call"] = reinterpret_cast<std::int64_t>(call);
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    (*reinterpret_cast<const std::function<void()>*>(context->saved_data["call"].toInt()))();
    return {gradients[0], at::Tensor()};
  }
};

// A loss whose gradient of b is complete when `call` is called, and that of a is not.
at::Tensor loss_with(const SimpleNetwork& net, const std::function<void()>& call) {
  const at::Tensor a = InBackward::apply(net.a.tensor(), &call);
  return (a.square() + net.b.tensor()).square().sum() * (replica_here() + 1);
}

// Counts the calls of a group's splits that have ended, by how often they were split.
class CountingGroup final : public collective::Group {
 public:
  using Counts = std::array<std::atomic<int>, 4>;
  CountingGroup(std::shared_ptr<Group> group, std::shared_ptr<Counts> counts, std::size_t depth = 0)
      : group_(std::move(group)), counts_(std::move(counts)), depth_(depth) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  std::vector<Bytes> exchange(Bytes mine, std::string_view what, Deadline deadline) override {
    std::vector<Bytes> all = group_->exchange(std::move(mine), what, deadline);
    ++counts_->at(depth_);
    return all;
  }
  std::shared_ptr<Group> split() override {
    return std::make_shared<CountingGroup>(group_->split(), counts_, depth_ + 1);
  }

 private:
  const std::shared_ptr<Group> group_;
  const std::shared_ptr<Counts> counts_;
  const std::size_t depth_;
};

// Numbers of the strategy's own group, and of the one by which gradients travel early.
constexpr std::size_t kOwnCalls = 1, kEarlyCalls = 2;

void on_counting_workers(
    const MultiWorkerMirroredOptions& options,
    const std::function<void(MultiWorkerMirroredStrategy&, CountingGroup::Counts&)>& body) {
  const InProcessWorkers workers(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto counts = std::make_shared<CountingGroup::Counts>();
      MultiWorkerMirroredStrategy strategy(
          std::make_shared<CountingGroup>(workers.group(rank), counts), options);
      body(strategy, *counts);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(OverlappedGradients, TravelWhileTheBackwardPassRuns) {
  on_counting_workers({.devices = {"CPU:0"},
                       .communication = {.bytes_per_pack = kPack},
                       .overlaps_communication = true},
                      [](auto& strategy, const CountingGroup::Counts& counts) {
                        const SimpleNetwork net(strategy);
                        const std::function<void()> nothing = [] {};
                        for (int step = 0; step < 3; ++step)
                          strategy.run([&] { net.sgd.minimize(loss_with(net, nothing)); });
                        const int before = counts[kEarlyCalls];
                        const Deadline deadline = Deadline::after(std::chrono::seconds(30));
                        const std::function<void()> wait = [&] {
                          while (counts[kEarlyCalls] == before && !deadline.has_expired())
                            std::this_thread::yield();
                          EXPECT_EQ(counts[kEarlyCalls], before + 1);
                        };
                        strategy.run([&] { net.sgd.minimize(loss_with(net, wait)); });
                        EXPECT_EQ(counts[kEarlyCalls], before + 2);
                      });
}

TEST(OverlappedGradients, TravelInPacks) {
  for (const auto& [bytes, calls] : {std::pair{0, 1}, {8, 3}, {100, 2}, {1000, 1}}) {
    on_counting_workers({.devices = {"CPU:0"}, .communication = {.bytes_per_pack = bytes}},
                        [calls = calls](auto& strategy, const CountingGroup::Counts& counts) {
                          const SimpleNetwork net(strategy);
                          const auto step = [&] {
                            strategy.run([&] { net.sgd.minimize(net.loss()); });
                          };
                          for (int i = 0; i < 4; ++i) step();
                          // The numbers beside the gradients, 72 bytes, are in the first pack.
                          const int before = counts[kOwnCalls];
                          step();
                          EXPECT_EQ(counts[kOwnCalls], before + calls);
                          EXPECT_EQ(counts[kEarlyCalls], 0);
                        });
  }
}

// The gradients of b are on their way when the backward pass of one worker fails.
TEST(OverlappedGradients, OfAFailedBackwardPassAreDropped) {
  for (const bool is_caught : {false, true}) {
    const auto train = [&](auto& strategy) {
      const SimpleNetwork net(strategy);
      for (int step = 0; step < kOverlappedSteps; ++step) {
        const std::function<void()> fail = [&] {
          if (step == 4 && (is_caught || strategy.worker() == 1))
            throw std::runtime_error("no more numbers");
        };
        const auto body = [&] {
          if (!is_caught) return net.sgd.minimize(loss_with(net, fail));
          try {
            net.sgd.minimize(loss_with(net, fail));
          } catch (const std::exception& error) {
            EXPECT_THAT(error.what(), HasSubstr("no more numbers"));
          }
        };
        if (step == 4 && !is_caught) {
          try {
            strategy.run(body);
            ADD_FAILURE() << "no error on worker " << strategy.worker();
          } catch (const std::exception& error) {
            EXPECT_THAT(error.what(), HasSubstr("no more numbers"));
          }
        } else {
          strategy.run(body);
        }
      }
      return testing::values_of({net.a, net.b});
    };
    const Tensors expected = values_on_workers(2, {}, train).at(0);
    expect_bits_of(values_on_workers(2, {.bytes_per_pack = kPack, .overlaps = true}, train),
                   expected);
  }
}

TEST(OverlappedGradients, NameWhatIsDifferent) {
  const auto errors =
      run_workers(2, {.bytes_per_pack = kPack, .overlaps = true}, [](auto& strategy) {
        SimpleNetwork net(strategy);
        for (int step = 0; step < 3; ++step) strategy.run([&] { net.sgd.minimize(net.loss()); });
        if (strategy.worker() == 1) net.sgd.set_hyperparameter("learning_rate", 0.375);
        strategy.run([&] { net.sgd.minimize(net.loss()); });
      });
  for (const auto& error : errors) {
    EXPECT_THAT(text_of(error),
                HasSubstr("learning_rate 0.125, momentum 0.5, weight_decay 0 on worker:0"));
    EXPECT_THAT(text_of(error),
                HasSubstr("learning_rate 0.375, momentum 0.5, weight_decay 0 on worker:1"));
  }
}

TEST(OverlappedGradients, NameACallThatIsNoStep) {
  const auto errors =
      run_workers(2, {.bytes_per_pack = kPack, .overlaps = true}, [](auto& strategy) {
        const SimpleNetwork net(strategy);
        const auto train = [&] { strategy.run([&] { net.sgd.minimize(net.loss()); }); };
        for (int step = 0; step < 3; ++step) train();
        const auto once = [&] {
          strategy.run([&] {
            if (strategy.worker() == 0) return net.sgd.minimize(net.loss());
            get_replica_context()->all_reduce(ReduceOp::sum, at::ones({}));
          });
        };
        try {
          once();
          ADD_FAILURE() << "no error on worker " << strategy.worker();
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
          EXPECT_THAT(error.what(), HasSubstr("worker:0"));
          EXPECT_THAT(error.what(), HasSubstr("worker:1"));
        }
        for (int step = 0; step < 3; ++step) train();
        strategy.run([&] { EXPECT_TRUE(is_sending_early(net.sgd)); });
      });
  for (const auto& error : errors) EXPECT_EQ(text_of(error), "");
}

TEST(OverlappedGradients, NameOptionsThatDiffer) {
  const auto errors_of = [](const std::function<void(MultiWorkerMirroredOptions&)>& change) {
    const InProcessWorkers workers(2);
    std::vector<std::string> texts(2);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        MultiWorkerMirroredOptions options{.devices = {"CPU:0"}};
        if (rank == 1) change(options);
        MultiWorkerMirroredStrategy strategy(workers.group(rank), options);
        try {
          const SimpleNetwork net(strategy);
          strategy.run([&] { net.sgd.minimize(net.loss()); });
        } catch (const Error& error) {
          texts[static_cast<std::size_t>(rank)] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(texts[0], texts[1]);
    return texts[0];
  };
  EXPECT_THAT(errors_of([](auto& options) { options.communication.bytes_per_pack = 12; }),
              HasSubstr("in packs of 12 bytes"));
  EXPECT_THAT(errors_of([](auto& options) { options.overlaps_communication = true; }),
              HasSubstr("not overlapped"));
}

// A worker ends while packs of the other one are on their way.
TEST(OverlappedGradients, OfALostWorkerFailWithItsName) {
  const auto begin = std::chrono::steady_clock::now();
  const auto errors =
      run_workers(2, {.bytes_per_pack = kPack, .overlaps = true}, [](auto& strategy) {
        const SimpleNetwork net(strategy);
        for (int step = 0; step < 4; ++step) strategy.run([&] { net.sgd.minimize(net.loss()); });
        if (strategy.worker() == 1) return;
        strategy.run([&] { net.sgd.minimize(net.loss()); });
      });
  EXPECT_THAT(text_of(errors[0]), HasSubstr("worker:1"));
  EXPECT_EQ(text_of(errors[1]), "");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

// One worker is late: the pack misses its deadline, and so does the step.
TEST(OverlappedGradients, MissTheDeadlineOfTheStep) {
  std::atomic<bool> is_over = false;
  const auto errors = run_workers(
      2, {.timeout = std::chrono::seconds(2), .bytes_per_pack = kPack, .overlaps = true},
      [&](auto& strategy) {
        const SimpleNetwork net(strategy);
        for (int step = 0; step < 4; ++step) strategy.run([&] { net.sgd.minimize(net.loss()); });
        if (strategy.worker() == 1) return is_over.wait(false);
        try {
          strategy.run([&] { net.sgd.minimize(net.loss()); });
          ADD_FAILURE() << "no error";
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::deadline_exceeded);
          EXPECT_THAT(error.what(), HasSubstr("worker:1"));
        }
        is_over = true;
        is_over.notify_all();
      });
  for (const auto& error : errors) EXPECT_EQ(text_of(error), "");
}

std::ptrdiff_t threads_of_this_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

TEST(OverlappedGradients, LeaveNoThread) {
  values_trained(*std::make_unique<MirroredStrategy>(std::vector<std::string>{"CPU:0"}), 1);
  const std::ptrdiff_t before = threads_of_this_process();
  for (int round = 0; round < 3; ++round) {
    values_on_workers(2, {.bytes_per_pack = kPack, .overlaps = true},
                      [](auto& strategy) { return values_trained(strategy, 1); });
  }
  EXPECT_EQ(threads_of_this_process(), before);
}

}  // namespace
}  // namespace cohort
