// SPDX-License-Identifier: Apache-2.0
// Optimizers of LibTorch (torch::optim) for replicated modules, with LibTorch's formulas and state.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/optimizer/learning_rate_schedule.h"
#include "cohort/strategy/replicated.h"
#include "cohort/variable/variable.h"

namespace torch::optim {
class Optimizer;
class OptimizerParamGroup;
}  // namespace torch::optim
namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace cohort {

class AttachedState;  // variable/attached_states.h

namespace internal {
class LossWarnings;        // optimizer/loss_warnings.h
class MirroredHome;        // synchronous/mirrored/mirrored_home.h
class OptimizerGradients;  // synchronous/undo/optimizer_gradients.h
class TorchSchedules;      // synchronous/torch_schedules.h

// The options of all groups of an optimizer of LibTorch, as numbers with their names. Empty for
// options of types that LibTorch does not have.
struct TorchOptions {
  std::string_view optimizer = {};  // "Adam", for messages
  std::vector<std::string_view> names = {};
  std::vector<double> values = {};
};
COHORT_API TorchOptions
options_of_groups(const std::vector<torch::optim::OptimizerParamGroup>& groups);
// How the optimizer of a replica differs from that of the first one: "lr 0.1 in replica 0, 0.05 in
// replica 1", or that its state does; empty if neither does.
COHORT_API std::string difference_of_optimizers(const torch::optim::Optimizer& first,
                                                const torch::optim::Optimizer& other,
                                                std::size_t replica);

// The parameters of a replicated module as ordinary tensors, those of each replica. A replica's are
// used only from its thread.
class COHORT_API OptimizedParameters {
 public:
  // Throws as TorchOptimizer does.
  explicit OptimizedParameters(const std::vector<Variable>& parameters);
  std::size_t replicas() const { return tensors_.size(); }
  const std::vector<at::Tensor>& of(std::size_t replica) const { return tensors_.at(replica); }
  // Uses those that the optimizers have in their groups, which are given for each replica.
  using Groups = std::vector<std::vector<at::Tensor>>;
  void use_groups(const std::vector<Groups>& all);
  // How the state of the optimizers travels to other workers (rebuild()): `save` writes that of the
  // first replica, `load` reads it into that of any. If another worker has handed over a state, it
  // is loaded now. `difference`: difference_of_optimizers().
  struct StateFunctions {
    std::function<void(torch::serialize::OutputArchive&)> save = {};
    std::function<void(torch::serialize::InputArchive&, std::size_t replica)> load = {};
    std::function<std::string(std::size_t replica)> difference = {};
  };
  void hand_over_by(StateFunctions functions);
  // After the program has changed the optimizers: before the first run of a worker that has come
  // back, they get the state of the others again, which is newer.
  void keep_newer_state() const;
  // Until the next use_groups(), the optimizers are not known to be alike.
  void begin_change() const { are_alike_ = false; }

  // The replica on whose thread this is called. Throws failed_precondition if there is none.
  std::size_t replica_here(std::string_view call) const;
  void check_outside_run(std::string_view call) const;
  // The learning rates of the groups, of which there are `groups`. A rate is that of the replica's
  // next step; nullopt: there is no schedule for the group.
  void set_schedule(const LearningRateSchedule& rate, std::optional<std::size_t> group,
                    std::size_t groups);
  std::optional<double> scheduled_rate(std::size_t replica, std::size_t group) const;
  std::int64_t iterations() const;
  void set_iterations(std::int64_t iterations);
  // These concern grad() of a replica's tensors.
  void set_gradients(std::size_t replica, const at::Tensor& loss) const;
  // `accumulate`: what backward() adds from now on counts until the next call, also in later runs.
  void clear_gradients(std::size_t replica, bool accumulate = false) const;
  // Leaves those that count in a step. Throws failed_precondition if a run that failed has left
  // some that accumulate in only some replicas.
  void take_gradients(std::size_t replica) const;
  // After a step with take_gradients(): what backward() has left in other optimizers' parameters is
  // dropped when a later backward() adds to them.
  void leave_gradients(std::size_t replica) const;
  // All replicas make the call; each gets the sum in memory of its own. `optimizer` tells whether
  // they do so for the same one; `options` is called if workers have to compare theirs.
  void sum_gradients(std::size_t replica, const void* optimizer,
                     const std::function<TorchOptions()>& options) const;
  // After sum_gradients(): throws invalid_argument, in all replicas, if none had a gradient.
  void check_any_gradient(std::size_t replica) const;
  // All replicas make the call, and none returns if one has failed.
  void meet() const;
  // If replicas are on CPUs and on GPUs, whose optimizers round differently, all replicas make the
  // call and get the values of the first one.
  void equalize() const;
  // The replica has completed its step: a run that fails later does not undo it.
  void note_update(std::size_t replica) const;

 private:
  using Indices = std::vector<std::vector<std::size_t>>;
  Indices indices_of(std::size_t replica, const Groups& groups) const;

  std::vector<Variable> variables_;
  std::shared_ptr<MirroredHome> home_;
  std::vector<std::vector<at::Tensor>> tensors_;  // of each replica, in the order of the variables
  std::vector<std::size_t> used_;                 // those that are in a group
  std::shared_ptr<OptimizerGradients> gradients_;
  mutable std::atomic<bool> are_alike_ = false;
  std::shared_ptr<TorchSchedules> schedules_;
  std::shared_ptr<AttachedState> state_;    // nullptr: it is not handed over
  std::shared_ptr<LossWarnings> warnings_;  // shared: its type is not known here
};

// Clears the gradients of a replica when it is destroyed: a sum that stayed in grad() would be
// added once for each replica in the next step.
class ClearGradientsScope {
 public:
  ClearGradientsScope(const OptimizedParameters& parameters, std::size_t replica)
      : parameters_(parameters), replica_(replica) {}
  ~ClearGradientsScope() { parameters_.clear_gradients(replica_); }
  ClearGradientsScope(const ClearGradientsScope&) = delete;
  ClearGradientsScope& operator=(const ClearGradientsScope&) = delete;

 private:
  const OptimizedParameters& parameters_;
  const std::size_t replica_;
};

// The optimizer that a function makes: it returns the optimizer, or a pointer to it.
template <class Made>
struct MadeOptimizer {
  using Type = Made;
};
template <class Made>
requires requires(Made& made) { *made; }
struct MadeOptimizer<Made> {
  using Type = std::remove_reference_t<decltype(*std::declval<Made&>())>;
};
}  // namespace internal

// Trains the parameters of a replicated module with an optimizer of torch::optim. Each replica has
// an optimizer of its own, for its copy of the parameters. A step adds the gradients of all
// replicas, and then each of them makes the same update, so the copies stay equal bit by bit. If
// there are replicas on CPUs and on GPUs, all get the parameters of the first one after each step.
//
//   cohort::TorchOptimizer optimizer(net, [](std::vector<at::Tensor> parameters) {
//     return torch::optim::Adam(std::move(parameters), torch::optim::AdamOptions(1e-3));
//   });
//   strategy.run(
//       [&](const at::Tensor& x, const at::Tensor& y) {
//         optimizer.minimize(cohort::average_loss(losses_of(net->forward(x), y)));
//       },
//       batch);
//   optimizer.for_each([](torch::optim::Adam& each) {
//     static_cast<torch::optim::AdamOptions&>(each.defaults()).lr(1e-4);
//     for (auto& group : each.param_groups())
//       static_cast<torch::optim::AdamOptions&>(group.options()).lr(1e-4);
//   });
//
// SGD, Adam, AdamW, RMSprop and Adagrad work, and optimizers of yours, of which rebuild() hands
// over what save() writes and load() reads. LBFGS, which computes the loss several times in a step,
// does not compile. cohort::SGD and so on (optimizers.h) have the same options and formulas, and
// also train on parameter servers and in traced steps.
//
// A shared handle. minimize(), step() and zero_grad() are called in replicas, by all of them alike;
// for_each() must not run at the same time.
template <class Optimizer>
class TorchOptimizer {
  static_assert(
      requires(Optimizer & each) {
        each.step();
        each.param_groups();
      },
      "TorchOptimizer needs an optimizer of torch::optim whose step() needs no closure: "
      "LBFGS computes the loss several times in a step, and replicas could not add their "
      "gradients in between; use SGD, Adam, AdamW, RMSprop or Adagrad");

 public:
  // `factory` is called once for each replica, with that replica's trainable parameters in the
  // order of model.parameters(), which have their names. It returns an optimizer of all or some of
  // them, or a unique_ptr or shared_ptr to one; every time with the same options and groups.
  //
  // Throws invalid_argument if the module has no trainable parameters, and if the optimizer has
  // none of the given tensors, others, or not the same in each replica; unimplemented for modules
  // on parameter servers, and for CentralStorageStrategy with several replicas, which would all
  // update the one value that they share. Exceptions of `factory` pass unchanged.
  template <class M, class Factory>
  TorchOptimizer(const Replicated<M>& model, Factory&& factory)
      : parameters_(std::make_shared<internal::OptimizedParameters>(model.parameters())) {
    for (std::size_t i = 0; i < parameters_->replicas(); ++i)
      copies_.push_back(made_by(factory, parameters_->of(i)));
    use_groups();
    if constexpr (kHasState) {
      parameters_->hand_over_by(
          {[copies = copies_](torch::serialize::OutputArchive& to) { copies.front()->save(to); },
           [copies = copies_](torch::serialize::InputArchive& from, std::size_t replica) {
             copies[replica]->state().clear();  // load() leaves what the other has not
             copies[replica]->load(from);
           },
           [copies = copies_](std::size_t replica) {
             if constexpr (std::is_convertible_v<Optimizer*, torch::optim::Optimizer*>)
               return internal::difference_of_optimizers(*copies[0], *copies[replica], replica);
             return std::string();
           }});
    }
  }

  // Computes the gradients of a scalar loss for this replica's parameters, and makes a step() with
  // them alone; grad() of the parameters has no influence. Scale the loss by the size of the global
  // batch, as average_loss() does. Throws invalid_argument if loss is not a floating-point scalar,
  // or depends on none of the parameters in any replica; the errors of step(). Hooks of the
  // parameters (register_hook()) change their gradients, as in backward(). Warns once if the loss
  // is a mean of the replica's own rows; and as step() does, if its graph does not tell whether it
  // is one.
  void minimize(const at::Tensor& loss) const { minimize(loss, NoChange{}); }
  // The same, with the `change` of step().
  template <class F>
  void minimize(const at::Tensor& loss, F&& change) const {
    const std::size_t replica = parameters_->replica_here("minimize");
    parameters_->set_gradients(replica, loss);
    make_step(replica, change, /*needs_gradient=*/true);
  }
  // Adds grad() of all replicas, calls `change` with this replica's optimizer, then its step(), and
  // at the end clears grad(), also if it throws. A gradient that only some replicas have is zero in
  // the others. So several backward() before it are one reduction (no_sync() of PyTorch's DDP), and
  // `change` sees the gradients of the whole batch; it must do the same in all replicas. If it
  // throws in one, no replica makes the step:
  //
  //   optimizer.step([](torch::optim::SGD& own) {
  //     torch::nn::utils::clip_grad_norm_(own.param_groups()[0].params(), 1.0);
  //   });
  //
  // The numbers are those of LibTorch's step() after zero_grad(true), which leaves no gradient (the
  // default from version 2 on), and the same backward(). Other gradients in grad() do not count:
  // what was there when run() began, and what the loss of another optimizer, which has made its
  // step since, has left. If gradients of several runs shall add up, call zero_grad() before the
  // first backward(), and step() in the last run.
  //
  // Throws failed_precondition outside of a replica of the module's strategy, if another replica
  // returns without this call; after a run that failed, if gradients add up over several runs, of
  // which some may be lost, until zero_grad(); after an error of Optimizer::step() itself, until a
  // for_each() has restored the state. Throws invalid_argument, in every replica, if they make it
  // for different optimizers, or gradients differ in shape or layout, or options of LibTorch's own
  // optimizers differ between workers, or a parameter requires a gradient on some of them alone;
  // unimplemented in a traced step.
  //
  // Warns once if average_loss() was not called in the run of a replica that has computed the
  // gradients, since a mean of the replica's own rows then counts too much.
  template <class F>
  void step(F&& change) const {
    static_assert(std::is_invocable_v<F&, Optimizer&>,
                  "TorchOptimizer::step() takes a function of the optimizer, not a closure that "
                  "computes the loss: call backward() first, or use minimize(loss)");
    const std::size_t replica = parameters_->replica_here("step");
    parameters_->take_gradients(replica);
    make_step(replica, change, /*needs_gradient=*/false);
    parameters_->leave_gradients(replica);
  }
  void step() const { step(NoChange{}); }
  // Clears grad() of the optimizer's parameters in this replica. From here to the next step(), all
  // gradients count that backward() adds: also in later runs, and after steps of other optimizers.
  // Throws failed_precondition outside of a replica.
  void zero_grad() const {
    parameters_->clear_gradients(parameters_->replica_here("zero_grad"), /*accumulate=*/true);
  }

  // Calls fn(optimizer) for the optimizer of each replica, in their order: to change learning rates
  // and groups, or to restore the state. fn must do the same with each. Throws failed_precondition
  // in a replica; invalid_argument as the constructor does, if groups have changed. After an error
  // here, steps throw failed_precondition until a for_each() has succeeded. In a worker that has
  // come back to a training, before its first run(), the state that the others have replaces what
  // fn has set, with a warning.
  template <class F>
  void for_each(F&& fn) {
    parameters_->check_outside_run("for_each");
    parameters_->begin_change();
    for (const std::shared_ptr<Optimizer>& each : copies_) fn(*each);
    use_groups();
    parameters_->keep_newer_state();
  }
  // Sets the learning rate of all groups, or of one, before each step: a number, or the value of a
  // schedule for the number of the step, iterations(). So it replaces torch::optim's LRScheduler
  // and what for_each() sets, in all replicas and workers alike. Throws failed_precondition in a
  // replica; invalid_argument for a rate < 0 or that is not finite, here and in steps, and for a
  // group that does not exist. If a schedule throws, no replica makes the step.
  void set_learning_rate(const LearningRateSchedule& learning_rate,
                         std::optional<std::size_t> group = {}) {
    static_assert(kHasRates, "TorchOptimizer::set_learning_rate() needs options with set_lr()");
    parameters_->check_outside_run("set_learning_rate");
    parameters_->set_schedule(learning_rate, group, copies_.front()->param_groups().size());
  }
  // The learning rate of a group in the next step.
  double learning_rate(std::size_t group = 0) const {
    auto& options = copies_.front()->param_groups().at(group).options();
    return parameters_->scheduled_rate(0, group).value_or(options.get_lr());
  }
  // How many steps there were: the number of the next one. Checkpoints and rebuild() carry it with
  // the optimizer's state; beside torch::save(), restore it by set_iterations(), which throws as
  // for_each() does, and invalid_argument for a number < 0.
  std::int64_t iterations() const { return parameters_->iterations(); }
  void set_iterations(std::int64_t iterations) { parameters_->set_iterations(iterations); }

  // The optimizer of local replica 0 has the state of all, for saving: torch::save(). Throws
  // std::out_of_range if there is no such replica.
  const Optimizer& per_replica(std::size_t replica) const { return *copies_.at(replica); }
  std::size_t size() const { return copies_.size(); }  // the number of replicas

 private:
  static constexpr bool kHasState = requires(Optimizer & each, torch::serialize::OutputArchive& to,
                                             torch::serialize::InputArchive& from) {
    each.save(to);
    each.load(from);
    each.state().clear();
  };

  static constexpr bool kHasRates = requires(Optimizer & each) {
    each.param_groups()[0].options().set_lr(each.param_groups()[0].options().get_lr());
  };

  struct NoChange {
    void operator()(Optimizer&) const {}
  };
  template <class F>
  void make_step(std::size_t replica, F& change, bool needs_gradient) const {
    const internal::ClearGradientsScope at_end(*parameters_, replica);
    if constexpr (kHasRates) {
      auto& groups = copies_[replica]->param_groups();
      for (std::size_t i = 0; i < groups.size(); ++i) {
        if (const auto rate = parameters_->scheduled_rate(replica, i))
          groups[i].options().set_lr(*rate);
      }
    }
    parameters_->sum_gradients(replica, copies_.front().get(),
                               [this] { return options_of(*copies_.front()); });
    if (needs_gradient) parameters_->check_any_gradient(replica);
    Optimizer& own = *copies_[replica];
    change(own);
    if constexpr (!std::is_same_v<std::remove_cvref_t<F>, NoChange>) parameters_->meet();
    try {
      own.step();
    } catch (...) {
      parameters_->begin_change();  // the optimizers of other replicas may have made their step
      throw;
    }
    parameters_->equalize();
    parameters_->note_update(replica);
  }
  static internal::TorchOptions options_of(Optimizer& optimizer) {
    if constexpr (requires { internal::options_of_groups(optimizer.param_groups()); })
      return internal::options_of_groups(optimizer.param_groups());
    return {};
  }
  template <class Factory>
  static std::shared_ptr<Optimizer> made_by(Factory& factory,
                                            const std::vector<at::Tensor>& parameters) {
    using Made = std::invoke_result_t<Factory&, std::vector<at::Tensor>>;
    if constexpr (std::is_same_v<Made, Optimizer>) {
      return std::shared_ptr<Optimizer>(new Optimizer(factory(parameters)));
    } else {
      return std::shared_ptr<Optimizer>(factory(parameters));
    }
  }
  void use_groups() {
    std::vector<internal::OptimizedParameters::Groups> all;
    for (const std::shared_ptr<Optimizer>& copy : copies_) {
      all.emplace_back();
      for (auto& group : copy->param_groups()) all.back().push_back(group.params());
    }
    parameters_->use_groups(all);
  }

  // Copies of this handle share both.
  std::shared_ptr<internal::OptimizedParameters> parameters_;
  std::vector<std::shared_ptr<Optimizer>> copies_;
};
template <class M, class Factory>
TorchOptimizer(const Replicated<M>& model, Factory&& factory)
    -> TorchOptimizer<typename internal::MadeOptimizer<
        std::invoke_result_t<Factory&, std::vector<at::Tensor>>>::Type>;

}  // namespace cohort
