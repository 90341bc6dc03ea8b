// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/registry.h"

#include <dlfcn.h>

#include <atomic>
#include <map>
#include <utility>

#include "cohort/core/clock.h"
#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/core/mutex.h"

namespace cohort::function {

// A function and the number of its running calls. Thread-safe.
class FunctionRegistration::Entry {
 public:
  Entry(std::string name, RegisteredFunction function)
      : name_(std::move(name)), function_(std::move(function)) {}

  const std::string& name() const { return name_; }
  std::vector<at::Tensor> call(std::vector<at::Tensor> inputs) {
    const Call counted(*this);
    return function_(std::move(inputs));
  }
  // Makes later calls throw, waits for the running ones, and destroys the function, because its
  // code may be unloaded next. Returns false if a call still runs at the deadline.
  bool remove(Deadline deadline) noexcept {
    is_removed_ = true;
    const Lock lock(mutex_);
    if (!ended_.wait(mutex_, deadline, [this] { return calls_ == 0; })) return false;
    function_ = nullptr;
    return true;
  }

 private:
  // Increments the count before it reads is_removed_; remove() sets is_removed_ before it reads the
  // count. So at least one of them sees the other.
  class Call {
   public:
    explicit Call(Entry& entry) : entry_(entry) {
      ++entry_.calls_;
      if (!entry_.is_removed_) return;
      end();
      ::cohort::internal::throw_error(
          ErrorCode::not_found, "[function.call] expected '", entry_.name_,
          "' to be registered, got a function whose registration has gone, as when its plugin is "
          "unloaded; keep the plugin loaded as long as its functions are used");
    }
    ~Call() { end(); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    void end() noexcept {
      if (--entry_.calls_ > 0 || !entry_.is_removed_) return;
      const Lock lock(entry_.mutex_);
      entry_.ended_.notify_all();
    }
    Entry& entry_;
  };

  const std::string name_;
  RegisteredFunction function_;
  std::atomic<int> calls_{0};
  std::atomic<bool> is_removed_{false};
  Mutex mutex_;  // for the wait of remove()
  Condition ended_;
};

// Process-wide, because registration happens before there is any server to own it. Never destroyed,
// because at exit the code of its functions may be unloaded before it. Thread-safe.
class Registry {
 public:
  using Entry = FunctionRegistration::Entry;

  static Registry& instance() {
    static Registry& registry = *new Registry;
    return registry;
  }

  std::shared_ptr<Entry> add(std::string name, RegisteredFunction function)
      COHORT_EXCLUDES(mutex_) {
    COHORT_CHECK(!name.empty() && function, ErrorCode::invalid_argument,
                 "[function.register] expected a name and a callable, got ",
                 name.empty() ? "an empty name" : "an empty callable for '" + name + "'");
    auto entry = std::make_shared<Entry>(std::move(name), std::move(function));
    const Lock lock(mutex_);
    const bool is_new = functions_.try_emplace(entry->name(), entry).second;
    COHORT_CHECK(is_new, ErrorCode::already_exists,
                 "[function.register] expected a new name, got '", entry->name(),
                 "', which is registered already");
    return entry;
  }

  void remove(const std::shared_ptr<Entry>& entry) noexcept COHORT_EXCLUDES(mutex_) {
    {
      const Lock lock(mutex_);
      functions_.erase(entry->name());
    }
    if (entry->remove(Deadline::after(kLastCalls))) return;
    log_error("the function '", entry->name(), "' still runs ",
              std::chrono::duration_cast<std::chrono::seconds>(kLastCalls).count(),
              " s after its registration went: the process crashes if its library is unloaded now");
    const Lock lock(mutex_);
    left_.push_back(entry);
  }

  std::shared_ptr<Entry> find(std::string_view name) COHORT_EXCLUDES(mutex_) {
    const Lock lock(mutex_);
    const auto it = functions_.find(name);
    return it == functions_.end() ? nullptr : it->second;
  }

  std::shared_ptr<Entry> get(std::string_view name) COHORT_EXCLUDES(mutex_) {
    std::shared_ptr<Entry> entry = find(name);
    COHORT_CHECK(entry != nullptr, ErrorCode::not_found,
                 "[function.lookup] no function is registered as '", name,
                 "' here (registered: ", names(),
                 "); call register_function in every task's program before its server starts");
    return entry;
  }

 private:
  std::string names() COHORT_EXCLUDES(mutex_) {
    const Lock lock(mutex_);
    std::string text;
    for (const auto& [name, function] : functions_) text += (text.empty() ? "" : ", ") + name;
    return text.empty() ? "none" : text;
  }

  static constexpr auto kLastCalls = std::chrono::seconds(10);

  Mutex mutex_;
  std::map<std::string, std::shared_ptr<Entry>, std::less<>> functions_ COHORT_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Entry>> left_
      COHORT_GUARDED_BY(mutex_);  // removed, but with calls that do not end
};

namespace {

// Keeps the library of `code` loaded. The program itself, and the libraries linked to it, are never
// unloaded anyway.
void keep_loaded(const void* code) noexcept {
  Dl_info library{};
  if (::dladdr(code, &library) == 0 || library.dli_fname == nullptr) return;
  void* const handle = ::dlopen(library.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
  if (handle != nullptr) ::dlclose(handle);
}

}  // namespace

void register_function(std::string name, RegisteredFunction function) {
  Registry::instance().add(std::move(name), std::move(function));
  keep_loaded(__builtin_return_address(0));
}

FunctionRegistration::FunctionRegistration(std::string name, RegisteredFunction function)
    : entry_(Registry::instance().add(std::move(name), std::move(function))) {}

FunctionRegistration::~FunctionRegistration() { Registry::instance().remove(entry_); }

RegisteredFunction registered_function(std::string_view name) {
  return [entry = Registry::instance().get(name)](std::vector<at::Tensor> inputs) {
    return entry->call(std::move(inputs));
  };
}

std::vector<at::Tensor> call_registered_function(std::string_view name,
                                                 std::vector<at::Tensor> inputs) {
  return Registry::instance().get(name)->call(std::move(inputs));
}

bool is_registered_function(std::string_view name) {
  return Registry::instance().find(name) != nullptr;
}

}  // namespace cohort::function
