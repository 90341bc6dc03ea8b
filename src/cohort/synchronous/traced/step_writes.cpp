// SPDX-License-Identifier: Apache-2.0
// Assignments and changes of rows in a traced step. They do what MirroredHome::assign() and
// scatter() do in a replica.
#include <ATen/core/TensorBody.h>

#include <algorithm>
#include <string>

#include "cohort/core/error.h"
#include "cohort/replicas/step_run.h"
#include "cohort/synchronous/mirrored/combined_writes.h"
#include "cohort/synchronous/traced/variable_trace.h"
#include "cohort/variable/rows.h"

namespace cohort::internal {
namespace {

// Whether a value is one object in all replicas: one that was made outside of the step, which is
// known now, or an argument that is the same in all, which each run finds out.
class SharedObject {
 public:
  explicit SharedObject(const std::vector<TensorIdentity>& all)
      : argument_(all.front().argument()) {
    is_same_ = std::ranges::all_of(all, [&](const TensorIdentity& one) {
      return one.argument() == argument_ && (argument_ || one.is_same_object(all.front()));
    });
  }
  // In a meeting.
  bool is_one(const StepReplica& replica) const {
    if (!is_same_ || !argument_) return is_same_;
    if (!is_row_major(replica.argument(0, *argument_))) return false;
    for (std::size_t r = 1; r < replica.count(); ++r) {
      if (!replica.argument(r, *argument_).is_same(replica.argument(0, *argument_))) return false;
    }
    return true;
  }

 private:
  std::optional<std::size_t> argument_;
  bool is_same_ = false;
};

// Throws if row ids do not fit; assignments were checked when they were traced.
void check_values(const VariableWrite& write) {
  if (!write.row_ids.defined()) return;
  variable::check_rows(write.kind, write.variable.name(), write.variable.spec(), write.row_ids,
                       write.value);
}

void note_write(const MirroredVariable& variable, const StepReplica& replica,
                MirroredHome::Reach::Kind reach) {
  MirroredHome& home = variable.mirrored_home();
  if (home.is_update(variable, reach)) home.undo().note_update(replica.index());
}

// A write of one replica alone.
class OwnWrite final : public JoinedCall {
 public:
  OwnWrite(VariableWrite write, std::size_t value) : write_(std::move(write)), value_(value) {}
  std::vector<at::Tensor> run(StepReplica& replica, std::vector<at::Tensor> values) const override {
    const VariableWrite write = with_tensors(write_, values);
    check_values(write);
    MirroredVariable& variable = target_of(write_.variable).variable;
    variable.mirrored_home().undo().about_to_write(variable, value_, replica.index());
    variable.allow_difference();
    variable.write_value(value_, write);
    note_write(variable, replica, MirroredHome::Reach::Kind::one);
    return {};
  }

 private:
  const VariableWrite write_;  // without its tensors
  const std::size_t value_;
};

class JoinedWrite final : public JoinedCall {
 public:
  // `objects`: of each tensor; `are_numbers`: the replicas write numbers of the host.
  JoinedWrite(VariableWrite write, std::vector<SharedObject> objects, bool are_numbers)
      : write_(std::move(write)), objects_(std::move(objects)), are_numbers_(are_numbers) {}
  std::vector<at::Tensor> run(StepReplica& replica, std::vector<at::Tensor> values) const override {
    MirroredVariable& variable = target_of(write_.variable).variable;
    const MirroredHome& home = variable.mirrored_home();
    check_values(with_tensors(write_, values));
    replica.own_offer().values = std::move(values);
    replica.meet();
    const bool is_plain = variable.is_plain();
    // Otherwise each replica computes the same, and all throw the same.
    const auto combine = [&] {
      const VariableWrite together = combined(home, {joint(replica)})[0];
      if (is_plain) variable.write_all(together);
      return write_tensors(together);
    };
    const auto together = replica.together(is_plain || home.has_workers(), combine);
    if (!is_plain) variable.write_value(replica.index(), with_tensors(write_, together));
    replica.leave();
    note_write(variable, replica, MirroredHome::Reach::Kind::merged);
    return {};
  }

 private:
  JointWrite joint(const StepReplica& replica) const {
    JointWrite joint;
    for (std::size_t r = 0; r < replica.count(); ++r)
      joint.of_replicas.push_back(with_tensors(write_, replica.of(r).values));
    const bool is_one_object = std::ranges::all_of(
        objects_, [&](const SharedObject& each) { return each.is_one(replica); });
    // The tensors of a program are other objects than those of the step.
    joint.one = {is_one_object || (are_numbers_ && one_for_all(joint.of_replicas).is_one),
                 are_numbers_};
    return joint;
  }
  const VariableWrite write_;  // without its tensors
  const std::vector<SharedObject> objects_;
  const bool are_numbers_;
};

class WriteCall final : public StepCall {
 public:
  WriteCall(const VariableWrite& write, std::vector<TensorIdentity> identities,
            std::optional<std::size_t> value)
      : write_(with_tensors(write, std::vector<at::Tensor>(identities.size()))),
        identities_(std::move(identities)),
        value_(value) {}
  std::string text() const override {
    return std::string(variable::effect_kind(write_.kind).name) + "(" + write_.variable.name() +
           ")";
  }
  bool is_of_all() const override { return !value_; }
  std::unique_ptr<const JoinedCall> join(const std::vector<const StepCall*>& all) const override {
    if (value_) return std::make_unique<OwnWrite>(write_, *value_);
    bool are_numbers = true;
    std::vector<std::vector<TensorIdentity>> of_tensors(identities_.size());
    for (const StepCall* each : all) {
      const auto& one = static_cast<const WriteCall&>(*each);
      are_numbers = are_numbers && one.write_.is_number;
      for (std::size_t k = 0; k < of_tensors.size(); ++k)
        of_tensors[k].push_back(one.identities_[k]);
    }
    return std::make_unique<JoinedWrite>(
        write_, std::vector<SharedObject>(of_tensors.begin(), of_tensors.end()), are_numbers);
  }

 private:
  const VariableWrite write_;  // without its tensors
  const std::vector<TensorIdentity> identities_;
  const std::optional<std::size_t> value_;
};

}  // namespace

std::shared_ptr<const StepCall> write_call(const VariableWrite& write,
                                           std::vector<TensorIdentity> identities,
                                           std::optional<std::size_t> value) {
  return std::make_shared<WriteCall>(write, std::move(identities), value);
}

}  // namespace cohort::internal
