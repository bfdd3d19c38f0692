/* What a record costs, compiled: produce(), and the report of a record that has a stamp.

   Each takes the common case only, and decides it as its version in Python does (sending.py: the reasons
   stand there). Everything else goes to that version, with the arguments as they came. Where a decision
   changes, both change: the tests of the Producer run on both.

   Only CPython's API: librdkafka is called by confluent-kafka's methods. The global interpreter lock is held
   throughout, and no bytecode runs between the steps. So no signal handler and no other thread comes in
   between, but in what is called: librdkafka's produce() (handlers, where there are headers), helpers in
   Python, the application's callback, and finalizers where an object of the garbage collector is made. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <stddef.h>
#include <stdint.h>

#if defined(Py_GIL_DISABLED) || defined(PYPY_VERSION)
#error "this needs CPython's global interpreter lock; without it the producer's calls are in Python"
#endif
#ifndef SOURCE
#define SOURCE 0u /* the CRC-32 of this file: what was built of another one is not used */
#endif
#define MULTIPLIER 1640531527u

static PyObject *zero, *anywhere, *monotonic_name, *offset_name, *lease_until_name;

/* -- what is learned of the Python side -------------------------------------------------------------- */

/* The slots of RouteWriter, then those of PartitionSendState. Their __init__ sets each, nothing deletes one. */
enum { OPEN, SENT, DONE, W_TOPIC, W_PARTITION, STAMP_PREFIX, GOOD_UNTIL, IDENTITY, LAST_NUMBER, LAST_OFFSET,
       SEGMENT, PARENT, WRITER_SLOTS, NEXT_SEQUENCE = WRITER_SLOTS, BOUNDS, WRITERS, SLOTS };
static const char *const slot_names[SLOTS] = {
    "open", "sent", "done", "topic", "partition", "stamp_prefix", "good_until", "identity", "last_number",
    "last_offset", "segment", "parent", "next_sequence", "bounds", "writers"};
static Py_ssize_t slot_at[SLOTS];
static PyTypeObject *writer_type, *send_state_type;
static PyObject *names, *complete_stamp, *wrapped_one;
#define SLOT(object, slot) (*(PyObject **)((char *)(object) + slot_at[slot]))

static PyObject *learn(PyObject *module, PyObject *given)
{
    PyObject *type[2], *scope, *complete, *wrapped;
    if (!PyArg_ParseTuple(given, "O!O!O!OO", &PyType_Type, &type[0], &PyType_Type, &type[1], &PyDict_Type, &scope,
                          &complete, &wrapped)) return NULL;
    for (int i = 0; i < SLOTS; i++) {
        PyObject *member = PyObject_GetAttrString(type[i >= WRITER_SLOTS], slot_names[i]);
        if (!member) return NULL;
        if (!Py_IS_TYPE(member, &PyMemberDescr_Type)) {
            Py_DECREF(member);
            return PyErr_Format(PyExc_TypeError, "%s is no slot", slot_names[i]);
        }
        slot_at[i] = ((PyMemberDescrObject *)member)->d_member->offset;
        Py_DECREF(member);
    }
    Py_XSETREF(writer_type, (PyTypeObject *)Py_NewRef(type[0])); /* the same again for each Producer */
    Py_XSETREF(send_state_type, (PyTypeObject *)Py_NewRef(type[1]));
    Py_XSETREF(names, Py_NewRef(scope));
    Py_XSETREF(complete_stamp, Py_NewRef(complete));
    Py_XSETREF(wrapped_one, Py_NewRef(wrapped));
    Py_RETURN_NONE;
}

static void set_slot(PyObject *object, int slot, PyObject *value) /* takes the reference */
{
    PyObject *before = SLOT(object, slot);
    SLOT(object, slot) = value;
    Py_XDECREF(before);
}

static PyObject *one_more(PyObject *number)
{
    long long value = PyLong_AsLongLong(number);
    return value == -1 && PyErr_Occurred() ? NULL : PyLong_FromLongLong(value + 1);
}

static int now(double *seconds) /* by its name: a simulation shows another clock */
{
    PyObject *clock = Py_XNewRef(PyDict_GetItemWithError(names, monotonic_name)), *read;
    if (!clock) {
        if (!PyErr_Occurred()) PyErr_SetObject(PyExc_NameError, monotonic_name);
        return -1;
    }
    read = PyObject_CallNoArgs(clock);
    Py_DECREF(clock);
    if (!read) return -1;
    *seconds = PyFloat_AsDouble(read);
    Py_DECREF(read);
    return *seconds == -1.0 && PyErr_Occurred() ? -1 : 0;
}

/* -- the report of a record that has a stamp --------------------------------------------------------- */

/* ``report(record, error, message)`` of Python, bound to its record. The garbage collector does not look at
   it: only librdkafka has it, where it cannot look, so it could never free a cycle through one. For the same
   reason nothing in it refers to the Producer. */
enum { SEND_STATE, WRITER, SEQUENCE, CALLBACK, EVERY, RECORD };
typedef struct {
    PyObject_HEAD
    PyObject *python, *only_errors, *record[RECORD];
} Report;
static PyTypeObject ReportType;

static PyObject *new_report(PyObject *python, PyObject *only_errors, PyObject *const *record)
{
    Report *self = PyObject_New(Report, &ReportType);
    if (!self) return NULL;
    self->python = Py_NewRef(python);
    self->only_errors = Py_NewRef(only_errors);
    for (int i = 0; i < RECORD; i++) self->record[i] = Py_NewRef(record[i]);
    return (PyObject *)self;
}

static void report_dealloc(Report *self)
{
    Py_DECREF(self->python);
    Py_DECREF(self->only_errors);
    for (int i = 0; i < RECORD; i++) Py_DECREF(self->record[i]);
    PyObject_Free(self);
}

/* Rule (a): acknowledged under a valid lease, and its segment is open and not fenced. 1: yes; -1: an error. */
static int is_final(PyObject *error, PyObject *writer)
{
    double at, until;
    if (error != Py_None) return 0;
    if (now(&at) < 0) return -1;
    until = PyFloat_AsDouble(SLOT(writer, GOOD_UNTIL));
    return until == -1.0 && PyErr_Occurred() ? -1 : at < until;
}

static PyObject *delivered(Report *self, PyObject *message)
{
    PyObject *writer = self->record[WRITER], *callback = self->record[CALLBACK], *value, *result;
    if (!(value = one_more(SLOT(writer, DONE)))) return NULL;
    set_slot(writer, DONE, value);
    set_slot(writer, LAST_NUMBER, Py_NewRef(self->record[SEQUENCE]));
    if (!(value = PyObject_CallMethodNoArgs(message, offset_name))) return NULL;
    set_slot(writer, LAST_OFFSET, value);
    if (callback == Py_None || self->only_errors == Py_True) Py_RETURN_NONE;
    if (SLOT(writer, IDENTITY) == Py_True) Py_INCREF(message);
    else message = PyObject_CallFunctionObjArgs(wrapped_one, message, SLOT(writer, SEGMENT), SLOT(writer, PARENT),
                                                NULL);
    if (!message) return NULL;
    result = PyObject_CallFunctionObjArgs(callback, Py_None, message, NULL);
    Py_DECREF(message);
    if (!result) return NULL;
    Py_DECREF(result);
    Py_RETURN_NONE;
}

static PyObject *report_call(Report *self, PyObject *given, PyObject *named)
{
    PyObject *error, *message, *record, *result, **part = self->record;
    int final;
    if (!PyArg_UnpackTuple(given, "report", 2, 2, &error, &message)) return NULL;
    if ((final = is_final(error, part[WRITER])) < 0) return NULL;
    if (final) return delivered(self, message);
    if (!(record = PyTuple_Pack(RECORD, part[0], part[1], part[2], part[3], part[4]))) return NULL;
    result = PyObject_CallFunctionObjArgs(self->python, record, error, message, NULL);
    Py_DECREF(record);
    return result;
}

static PyMemberDef report_members[] = {
    {"__func__", T_OBJECT, offsetof(Report, python), READONLY, "As a method's."}, {NULL}};
static PyTypeObject ReportType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kpsplit.producer._fast.Report",
    .tp_basicsize = sizeof(Report),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)report_dealloc,
    .tp_call = (ternaryfunc)report_call,
    .tp_members = report_members,
};

static PyObject *report(PyObject *module, PyObject *given)
{
    PyObject *python, *only_errors, *record[RECORD];
    if (!writer_type) return PyErr_Format(PyExc_RuntimeError, "learn() was not called");
    if (!PyArg_ParseTuple(given, "OO(OO!OOO)", &python, &only_errors, &record[0], writer_type, &record[1],
                          &record[2], &record[3], &record[4])) return NULL;
    return new_report(python, only_errors, record);
}

/* -- produce() --------------------------------------------------------------------------------------- */

/* As a tuple: it refers to what was there before it, and is never changed. So any cycle through it has an
   object that the collector can clear (the Producer's dictionary), and it needs no tp_clear. */
enum { PYTHON, SEND, REPORT, ONLY_ERRORS, PLAIN_REPORT, STATE, ROUTES, PLAIN, TAKE, GIVE, WANTED, HEADER,
       DEFAULT_CALLBACK, WITH_STAMP, REFUSED, CRC32, ONLY_STAMP, HAS };
typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *has[HAS];
} Produce;

enum { TOPIC, VALUE, KEY, AT, ON_REPORT, ON_DELIVERY, TIMESTAMP, HEADERS, ARGUMENTS };
static const char *const argument_names[ARGUMENTS] = {
    "topic", "value", "key", "partition", "callback", "on_delivery", "timestamp", "headers"};
static PyObject *arguments[ARGUMENTS];

static _Thread_local int depth; /* how many compiled calls of this thread have a lock, in one another */

static PyObject *inside(PyObject *module, PyObject *nothing)
{
    return PyBool_FromLong(depth);
}

/* Sort the arguments, and fill in what was not given. 0: there is something that only Python knows. */
static int are_given(Produce *self, PyObject *const *args, Py_ssize_t many, PyObject *named, PyObject **given)
{
    PyObject *const defaults[ARGUMENTS] = {NULL, Py_None, Py_None, anywhere, Py_None, Py_None, zero, Py_None};
    Py_ssize_t more = named ? PyTuple_GET_SIZE(named) : 0;
    if (many > ARGUMENTS) return 0;
    for (Py_ssize_t i = 0; i < many; i++) given[i] = args[i];
    for (Py_ssize_t i = 0; i < more; i++) {
        int at = 0;
        /* The same object: names in programs are interned. */
        while (at < ARGUMENTS && arguments[at] != PyTuple_GET_ITEM(named, i)) at++;
        if (at == ARGUMENTS || given[at]) return 0;
        given[at] = args[many + i];
    }
    for (int i = 0; i < ARGUMENTS; i++)
        if (!given[i]) given[i] = defaults[i];
    if (given[ON_DELIVERY] != Py_None) given[ON_REPORT] = given[ON_DELIVERY];
    else if (given[ON_REPORT] == Py_None) given[ON_REPORT] = self->has[DEFAULT_CALLBACK];
    return given[TOPIC] && PyUnicode_CheckExact(given[TOPIC]);
}

static PyObject *send(Produce *self, PyObject *topic, PyObject *key, PyObject *at, PyObject *bound,
                      PyObject *headers, PyObject *const *given)
{
    PyObject *const all[] = {topic, given[VALUE], key, at, bound, Py_None, given[TIMESTAMP], headers};
    return PyObject_Vectorcall(self->has[SEND], all, sizeof all / sizeof *all, NULL);
}

/* -- of an enrolled topic ---- */

/* The key as bytes, of a record whose partition it chooses; NULL without an error: only Python knows. */
static PyObject *key_of(PyObject *const *given)
{
    PyObject *key = NULL;
    if (!PyLong_CheckExact(given[AT]) || PyObject_RichCompareBool(given[AT], zero, Py_LT) != 1) return NULL;
    if (PyUnicode_CheckExact(given[KEY])) key = PyUnicode_AsUTF8String(given[KEY]);
    else if (PyBytes_CheckExact(given[KEY])) key = Py_NewRef(given[KEY]);
    if (key && !PyBytes_GET_SIZE(key)) Py_CLEAR(key);
    return key;
}

/* How many headers, -1: only Python knows. */
static Py_ssize_t header_count(PyObject *headers)
{
    return headers == Py_None            ? 0
           : PyList_CheckExact(headers) ? PyList_GET_SIZE(headers)
           : PyDict_CheckExact(headers) ? PyDict_GET_SIZE(headers)
                                        : -1;
}

/* The writer of a key (a new reference), NULL without an error: only Python knows. */
static PyObject *writer_of(PyObject *send_state, uint32_t hash)
{
    PyObject *bounds, *writers, *writer;
    Py_ssize_t low = 0, high;
    if (!Py_IS_TYPE(send_state, send_state_type)) return NULL;
    bounds = SLOT(send_state, BOUNDS);
    writers = SLOT(send_state, WRITERS);
    if (!PyTuple_Check(bounds) || !PyList_Check(writers)) return NULL;
    for (high = PyTuple_GET_SIZE(bounds); low < high;) { /* bisect_right() */
        Py_ssize_t middle = (low + high) / 2;
        unsigned long bound = PyLong_AsUnsignedLong(PyTuple_GET_ITEM(bounds, middle));
        if (bound == (unsigned long)-1 && PyErr_Occurred()) return NULL;
        if (hash < bound) high = middle;
        else low = middle + 1;
    }
    if (low >= PyList_GET_SIZE(writers)) return NULL;
    writer = PyList_GET_ITEM(writers, low);
    return Py_IS_TYPE(writer, writer_type) && SLOT(writer, OPEN) == Py_True ? Py_NewRef(writer) : NULL;
}

/* All headers of a record (a new reference). */
static PyObject *stamped(Produce *self, PyObject *headers, PyObject *stamp)
{
    PyObject *only = self->has[ONLY_STAMP], *all, *pair; /* one for all: librdkafka copies it, and the lock is ours */
    if (!header_count(headers)) return PyDict_SetItem(only, self->has[HEADER], stamp) < 0 ? NULL : Py_NewRef(only);
    if (!PyList_CheckExact(headers))
        return PyObject_CallFunctionObjArgs(self->has[WITH_STAMP], headers, stamp, NULL);
    if (!(all = PyList_GetSlice(headers, 0, PyList_GET_SIZE(headers)))) return NULL;
    pair = PyTuple_Pack(2, self->has[HEADER], stamp);
    if (!pair || PyList_Append(all, pair) < 0) Py_CLEAR(all);
    Py_XDECREF(pair);
    return all;
}

/* The call of librdkafka raised: Python decides what to take back. It may raise another error instead. */
static void refused(Produce *self, PyObject *const *record)
{
    PyObject *kind, *error, *trace, *said;
    PyErr_Fetch(&kind, &error, &trace);
    PyErr_NormalizeException(&kind, &error, &trace);
    if (trace) PyException_SetTraceback(error, trace);
    said = PyObject_CallFunctionObjArgs(self->has[REFUSED], error, record[SEND_STATE], record[WRITER],
                                        record[SEQUENCE], record[EVERY], NULL);
    if (said) PyErr_Restore(kind, error, trace);
    else {
        Py_XDECREF(kind);
        Py_XDECREF(error);
        Py_XDECREF(trace);
    }
    Py_XDECREF(said);
}

/* The lock is ours. NULL without an error: only Python knows. */
static PyObject *send_stamped(Produce *self, PyObject *send_state, PyObject *key, uint32_t hash,
                              PyObject *const *given)
{
    PyObject *writer = writer_of(send_state, hash), *sequence, *stamp = NULL, *every = NULL, *bound = NULL;
    PyObject *next = NULL, *sent = NULL, *result = NULL;
    if (!writer) return NULL;
    sequence = Py_NewRef(SLOT(send_state, NEXT_SEQUENCE));
    if ((next = one_more(sequence)) && (sent = one_more(SLOT(writer, SENT))) &&
        (stamp = PyObject_CallFunctionObjArgs(complete_stamp, SLOT(writer, STAMP_PREFIX), sequence, NULL)) &&
        (every = stamped(self, given[HEADERS], stamp))) {
        PyObject *const record[RECORD] = {send_state, writer, sequence, given[ON_REPORT],
                                          every == self->has[ONLY_STAMP] ? Py_None : every};
        if ((bound = new_report(self->has[REPORT], self->has[ONLY_ERRORS], record))) {
            set_slot(send_state, NEXT_SEQUENCE, Py_NewRef(next)); /* counted before librdkafka gets it */
            set_slot(writer, SENT, Py_NewRef(sent));
            result = send(self, SLOT(writer, W_TOPIC), key, SLOT(writer, W_PARTITION), bound, every, given);
            if (!result) refused(self, record);
        }
    }
    Py_DECREF(writer);
    Py_DECREF(sequence);
    Py_XDECREF(next);
    Py_XDECREF(sent);
    Py_XDECREF(stamp);
    Py_XDECREF(every);
    Py_XDECREF(bound);
    return result;
}

/* -- of a topic that is not enrolled ---- */

/* The lock is ours. NULL without an error: only Python knows. */
static PyObject *send_plain(Produce *self, PyObject *const *given)
{
    PyObject *until, *bound, *result;
    double at, lease;
    int is_plain = PySet_Contains(self->has[PLAIN], given[TOPIC]);
    if (is_plain <= 0 || !(until = PyObject_GetAttr(self->has[STATE], lease_until_name))) return NULL;
    lease = PyFloat_AsDouble(until);
    Py_DECREF(until);
    if ((lease == -1.0 && PyErr_Occurred()) || now(&at) < 0 || at >= lease) return NULL;
    bound = given[ON_REPORT] == Py_None ? Py_NewRef(Py_None)
                                        : PyMethod_New(self->has[PLAIN_REPORT], given[ON_REPORT]);
    if (!bound) return NULL;
    result = send(self, given[TOPIC], given[KEY], given[AT], bound, given[HEADERS], given);
    Py_DECREF(bound);
    return result;
}

/* -- both ---- */

static int is_taken(PyObject *take) /* 0: the lock is not free; that it waits for it is Python's */
{
    PyObject *token = PyObject_CallNoArgs(take);
    if (!token) PyErr_Clear();
    Py_XDECREF(token);
    return token != NULL;
}

static void give_back(PyObject *give) /* whatever was raised */
{
    PyObject *kind, *error, *trace, *done;
    PyErr_Fetch(&kind, &error, &trace);
    if (!(done = PyObject_CallOneArg(give, Py_None))) PyErr_WriteUnraisable(give);
    Py_XDECREF(done);
    PyErr_Restore(kind, error, trace);
}

static PyObject *produce(Produce *self, PyObject *const *args, size_t flags, PyObject *named)
{
    PyObject *given[ARGUMENTS] = {NULL}, *routes = NULL, *key = NULL, *crc = NULL, *result = NULL;
    Py_ssize_t count = 0;
    uint32_t hashed = 0;
    if (!are_given(self, args, PyVectorcall_NARGS(flags), named, given)) goto done;
    if (PyList_GET_SIZE(self->has[WANTED])) goto done; /* another thread goes first */
    if ((routes = Py_XNewRef(PyDict_GetItemWithError(self->has[ROUTES], given[TOPIC])))) {
        if (!PyList_Check(routes) || !(count = PyList_GET_SIZE(routes)) || header_count(given[HEADERS]) < 0 ||
            !(key = key_of(given)) || !(crc = PyObject_CallOneArg(self->has[CRC32], key))) goto done;
        hashed = (uint32_t)PyLong_AsUnsignedLongMask(crc);
    }
    if (PyErr_Occurred() || !is_taken(self->has[TAKE])) goto done;
    depth++;
    /* Other threads may have run since the list was looked at: a finalizer in between lets them. */
    if (!routes) result = send_plain(self, given);
    else if ((count = PyList_GET_SIZE(routes))) {
        PyObject *send_state = Py_NewRef(PyList_GET_ITEM(routes, hashed % count));
        result = send_stamped(self, send_state, key, hashed * MULTIPLIER, given);
        Py_DECREF(send_state);
    }
    depth--;
    give_back(self->has[GIVE]);
done:
    Py_XDECREF(routes);
    Py_XDECREF(key);
    Py_XDECREF(crc);
    if (result || PyErr_Occurred()) return result;
    return PyObject_Vectorcall(self->has[PYTHON], args, flags, named);
}

static int produce_traverse(Produce *self, visitproc visit, void *arg)
{
    for (int i = 0; i < HAS; i++) Py_VISIT(self->has[i]);
    return 0;
}

static void produce_dealloc(Produce *self)
{
    PyObject_GC_UnTrack(self);
    for (int i = 0; i < HAS; i++) Py_XDECREF(self->has[i]);
    PyObject_GC_Del(self);
}

static PyMemberDef produce_members[] = {
    {"__wrapped__", T_OBJECT, offsetof(Produce, has), READONLY, "The version in Python."}, {NULL}};
static PyTypeObject ProduceType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kpsplit.producer._fast.Produce",
    .tp_basicsize = sizeof(Produce),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_HAVE_GC |
                Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_dealloc = (destructor)produce_dealloc,
    .tp_traverse = (traverseproc)produce_traverse,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Produce, call),
    .tp_members = produce_members,
};

static PyObject *new_produce(PyObject *module, PyObject *given)
{
    PyObject *has[HAS];
    Produce *self;
    if (!writer_type) return PyErr_Format(PyExc_RuntimeError, "learn() was not called");
    if (!PyArg_ParseTuple(given, "OOOOOOO!O!OOO!OOOOO", &has[PYTHON], &has[SEND], &has[REPORT], &has[ONLY_ERRORS],
                          &has[PLAIN_REPORT], &has[STATE], &PyDict_Type, &has[ROUTES], &PySet_Type, &has[PLAIN],
                          &has[TAKE], &has[GIVE], &PyList_Type, &has[WANTED], &has[HEADER], &has[DEFAULT_CALLBACK],
                          &has[WITH_STAMP], &has[REFUSED], &has[CRC32])) return NULL;
    if (!(has[ONLY_STAMP] = PyDict_New())) return NULL;
    if (!(self = PyObject_GC_New(Produce, &ProduceType))) {
        Py_DECREF(has[ONLY_STAMP]);
        return NULL;
    }
    self->call = (vectorcallfunc)produce;
    for (int i = 0; i < HAS; i++) self->has[i] = i == ONLY_STAMP ? has[i] : Py_NewRef(has[i]);
    PyObject_GC_Track((PyObject *)self);
    return (PyObject *)self;
}

/* -- the module -------------------------------------------------------------------------------------- */

static PyMethodDef functions[] = {
    {"learn", learn, METH_VARARGS, "learn(writer_type, send_state_type, names, complete_stamp, wrapped_one)"},
    {"report", report, METH_VARARGS, "report(python, only_errors, (send_state, writer, sequence, callback, every))"},
    {"produce", new_produce, METH_VARARGS,
     "produce(python, send, report, only_errors, plain_report, state, fast_routes, fast_plain, take, give, wanted, "
     "header, default_callback, with_stamp, refused, crc32)"},
    {"inside", inside, METH_NOARGS, "Whether this thread is in a compiled produce(), which has no frame."},
    {NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_fast", .m_size = 0, .m_methods = functions};

PyMODINIT_FUNC PyInit__fast(void)
{
    struct { PyObject **name; const char *text; } interned[] = {
        {&monotonic_name, "monotonic"}, {&offset_name, "offset"}, {&lease_until_name, "lease_until"}};
    PyObject *module;
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) /* all above is of one interpreter */
        return PyErr_Format(PyExc_ImportError, "only the main interpreter can have the compiled part");
    for (size_t i = 0; i < sizeof interned / sizeof *interned; i++)
        if (!(*interned[i].name = PyUnicode_InternFromString(interned[i].text))) return NULL;
    for (int i = 0; i < ARGUMENTS; i++)
        if (!(arguments[i] = PyUnicode_InternFromString(argument_names[i]))) return NULL;
    if (!(zero = PyLong_FromLong(0)) || !(anywhere = PyLong_FromLong(-1))) return NULL;
    if (PyType_Ready(&ReportType) < 0 || PyType_Ready(&ProduceType) < 0) return NULL;
    if (!(module = PyModule_Create(&definition))) return NULL;
    if (PyModule_AddIntConstant(module, "source", (long)SOURCE) < 0) Py_CLEAR(module);
    return module;
}
