// SPDX-License-Identifier: Apache-2.0
// Assignments and changes of rows in a traced step. They do what MirroredHome::assign() and
// scatter() do in a replica.
#include <ATen/core/TensorBody.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <string>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/replicas/step_run.h"
#include "cohort/synchronous/mirrored/combined_writes.h"
#include "cohort/synchronous/traced/variable_trace.h"

namespace cohort::internal {
namespace {

// Whether a value is one object in all replicas: one that was made outside of the step, which is
// known now, or an argument that is the same in all, which each run finds out.
class SharedObject {
 public:
  explicit SharedObject(const std::vector<TensorIdentity>& all)
      : argument_(all.front().argument()) {
    is_same_ = std::all_of(all.begin(), all.end(), [&](const TensorIdentity& one) {
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

void note_write(const MirroredVariable& variable, const StepReplica& replica,
                MirroredHome::Reach::Kind reach) {
  MirroredHome& home = variable.mirrored_home();
  if (home.is_update(variable, reach)) home.undo().note_update(replica.index());
}

std::string_view verb_of(AssignKind kind) {
  switch (kind) {
    case AssignKind::assign:
      return "assign";
    case AssignKind::add:
      return "assign_add";
    case AssignKind::sub:
      return "assign_sub";
  }
  return "assign";
}

class OwnAssign final : public JoinedCall {
 public:
  OwnAssign(Variable handle, AssignKind kind, std::size_t value)
      : handle_(std::move(handle)), kind_(kind), value_(value) {}
  std::vector<at::Tensor> run(StepReplica& replica, std::vector<at::Tensor> values) const override {
    MirroredVariable& variable = target_of(handle_).variable;
    variable.mirrored_home().undo().about_to_write(variable, value_, replica.index());
    variable.allow_difference();
    variable.assign_value(value_, kind_, values[0]);
    note_write(variable, replica, MirroredHome::Reach::Kind::one);
    return {};
  }

 private:
  const Variable handle_;
  const AssignKind kind_;
  const std::size_t value_;
};

class JoinedAssign final : public JoinedCall {
 public:
  JoinedAssign(Variable handle, AssignKind kind, SharedObject object, bool is_number)
      : handle_(std::move(handle)), kind_(kind), object_(object), is_number_(is_number) {}

  std::vector<at::Tensor> run(StepReplica& replica, std::vector<at::Tensor> values) const override {
    MirroredVariable& variable = target_of(handle_).variable;
    replica.own_offer().values = std::move(values);
    replica.meet();
    std::vector<at::Tensor> all;
    for (std::size_t r = 0; r < replica.count(); ++r) all.push_back(replica.of(r).values[0]);
    if (MirroredHome& home = variable.mirrored_home(); home.has_workers()) {
      replica.over_workers([&] {
        std::vector<bool> are_one = {is_one(replica, all)};
        const auto of_all =
            home.assigned_by_all({{handle_, kind_, all.front(), is_number_}}, {all}, are_one);
        replica.shared_sums() = {combined(variable, of_all[0], {are_one[0], is_number_})};
      });
      variable.assign_value(replica.index(), kind_, replica.shared_sums()[0]);
      replica.leave();
      note_write(variable, replica, MirroredHome::Reach::Kind::merged);
      return {};
    }
    // All replicas throw the same.
    const at::Tensor value = combined(variable, all, {is_one(replica, all), is_number_});
    if (!variable.is_plain()) {
      variable.assign_value(replica.index(), kind_, value);
    } else {
      if (replica.index() == 0) variable.assign_all(kind_, value);
      replica.meet();
    }
    replica.leave();
    note_write(variable, replica, MirroredHome::Reach::Kind::merged);
    return {};
  }

 private:
  bool is_one(const StepReplica& replica, const std::vector<at::Tensor>& all) const {
    const auto is_first = [&](const at::Tensor& value) { return at::equal(value, all.front()); };
    return object_.is_one(replica) || (is_number_ && std::all_of(all.begin(), all.end(), is_first));
  }

  const Variable handle_;
  const AssignKind kind_;
  const SharedObject object_;
  const bool is_number_;
};

class AssignCall final : public StepCall {
 public:
  AssignCall(const Assignment& assignment, TensorIdentity identity,
             std::optional<std::size_t> value)
      : handle_(assignment.variable),
        kind_(assignment.kind),
        is_number_(assignment.is_number),
        identity_(std::move(identity)),
        value_(value) {}

  std::string text() const override {
    return std::string(verb_of(kind_)) + "(" + handle_.name() + ")";
  }
  bool is_of_all() const override { return !value_; }
  std::unique_ptr<const JoinedCall> join(const std::vector<const StepCall*>& all) const override {
    if (value_) return std::make_unique<OwnAssign>(handle_, kind_, *value_);
    std::vector<TensorIdentity> identities;
    bool are_numbers = true;
    for (const StepCall* each : all) {
      identities.push_back(static_cast<const AssignCall*>(each)->identity_);
      are_numbers = are_numbers && static_cast<const AssignCall*>(each)->is_number_;
    }
    return std::make_unique<JoinedAssign>(handle_, kind_, SharedObject(identities), are_numbers);
  }

 private:
  const Variable handle_;
  const AssignKind kind_;
  const bool is_number_;
  const TensorIdentity identity_;
  const std::optional<std::size_t> value_;
};

void check(const RowUpdate& update) {
  variable::check_rows(update.kind, update.variable.name(), update.variable.spec(), update.indices,
                       update.rows);
}

class OwnScatter final : public JoinedCall {
 public:
  OwnScatter(Variable handle, variable::ScatterKind kind, std::size_t value)
      : handle_(std::move(handle)), kind_(kind), value_(value) {}
  std::vector<at::Tensor> run(StepReplica& replica, std::vector<at::Tensor> values) const override {
    const RowUpdate update{handle_, kind_, values[0], values[1]};
    check(update);
    MirroredVariable& variable = target_of(handle_).variable;
    variable.mirrored_home().undo().about_to_write(variable, value_, replica.index());
    variable.allow_difference();
    variable.scatter_value(value_, update);
    note_write(variable, replica, MirroredHome::Reach::Kind::one);
    return {};
  }

 private:
  const Variable handle_;
  const variable::ScatterKind kind_;
  const std::size_t value_;
};

class JoinedScatter final : public JoinedCall {
 public:
  JoinedScatter(Variable handle, variable::ScatterKind kind, SharedObject indices,
                SharedObject rows)
      : handle_(std::move(handle)), kind_(kind), indices_(indices), rows_(rows) {}

  std::vector<at::Tensor> run(StepReplica& replica, std::vector<at::Tensor> values) const override {
    MirroredVariable& variable = target_of(handle_).variable;
    check({handle_, kind_, values[0], values[1]});
    replica.own_offer().values = std::move(values);
    replica.meet();
    std::vector<RowUpdate> changes;
    std::vector<const RowUpdate*> all;
    changes.reserve(replica.count());
    for (std::size_t r = 0; r < replica.count(); ++r) {
      const std::vector<at::Tensor>& given = replica.of(r).values;
      all.push_back(&changes.emplace_back(RowUpdate{handle_, kind_, given[0], given[1]}));
    }
    if (MirroredHome& home = variable.mirrored_home(); home.has_workers()) {
      replica.over_workers([&] {
        std::vector<std::vector<RowUpdate>> of_replicas;
        for (const RowUpdate& each : changes) of_replicas.push_back({each});
        const RowUpdate together =
            home.scattered_by_all(PerReplica<std::vector<RowUpdate>>(std::move(of_replicas)))[0];
        replica.shared_sums() = {together.indices, together.rows};
      });
      const std::vector<at::Tensor>& together = replica.shared_sums();
      variable.scatter_value(replica.index(), {handle_, kind_, together[0], together[1]});
      replica.leave();
      note_write(variable, replica, MirroredHome::Reach::Kind::merged);
      return {};
    }
    const bool is_one = indices_.is_one(replica) && rows_.is_one(replica);
    const RowUpdate change = combined_rows(variable, all, is_one);
    if (!variable.is_plain()) {
      variable.scatter_value(replica.index(), change);
    } else {
      if (replica.index() == 0) variable.scatter_all(change);
      replica.meet();
    }
    replica.leave();
    note_write(variable, replica, MirroredHome::Reach::Kind::merged);
    return {};
  }

 private:
  const Variable handle_;
  const variable::ScatterKind kind_;
  const SharedObject indices_, rows_;
};

class ScatterCall final : public StepCall {
 public:
  ScatterCall(const RowUpdate& update, TensorIdentity indices, TensorIdentity rows,
              std::optional<std::size_t> value)
      : handle_(update.variable),
        kind_(update.kind),
        indices_(std::move(indices)),
        rows_(std::move(rows)),
        value_(value) {}

  std::string text() const override {
    return variable::call_name(kind_).substr(std::string_view("variable.").size()) + "(" +
           handle_.name() + ")";
  }
  bool is_of_all() const override { return !value_; }
  std::unique_ptr<const JoinedCall> join(const std::vector<const StepCall*>& all) const override {
    if (value_) return std::make_unique<OwnScatter>(handle_, kind_, *value_);
    std::vector<TensorIdentity> indices, rows;
    for (const StepCall* each : all) {
      indices.push_back(static_cast<const ScatterCall*>(each)->indices_);
      rows.push_back(static_cast<const ScatterCall*>(each)->rows_);
    }
    return std::make_unique<JoinedScatter>(handle_, kind_, SharedObject(indices),
                                           SharedObject(rows));
  }

 private:
  const Variable handle_;
  const variable::ScatterKind kind_;
  const TensorIdentity indices_, rows_;
  const std::optional<std::size_t> value_;
};

}  // namespace

std::shared_ptr<const StepCall> assign_call(const Assignment& assignment, TensorIdentity identity,
                                            std::optional<std::size_t> value) {
  return std::make_shared<AssignCall>(assignment, std::move(identity), value);
}

std::shared_ptr<const StepCall> scatter_call(const RowUpdate& update, TensorIdentity indices,
                                             TensorIdentity rows,
                                             std::optional<std::size_t> value) {
  return std::make_shared<ScatterCall>(update, std::move(indices), std::move(rows), value);
}

}  // namespace cohort::internal
