/* What a record costs, compiled: produce(), its reports, and poll(0).

   Each takes the common case only, and decides it as its version in Python does (sending.py and polling.py:
   the reasons stand there). Everything else goes to that version, with the arguments as they came. Where a decision
   changes, both change: the tests of the Producer run on both.

   Only CPython's API: librdkafka is called by confluent-kafka's methods. The global interpreter lock is held
   throughout, and no bytecode runs between the steps. So no signal handler and no other thread comes in
   between, but in what is called: librdkafka's produce() (handlers, where there are headers) and its poll(),
   helpers in Python, the application's callback, and finalizers where an object of the garbage collector is
   made. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#if defined(Py_GIL_DISABLED) || defined(PYPY_VERSION)
#error "this needs CPython's global interpreter lock; without it the producer's calls are in Python"
#endif
#ifndef SOURCE
#define SOURCE 0u /* the CRC-32 of this file: what was built of another one is not used */
#endif
#define MULTIPLIER 1640531527u

static PyObject *zero, *anywhere, *monotonic_name, *offset_name;

/* -- what is learned of the Python side -------------------------------------------------------------- */

/* The slots of RouteWriter, of PartitionSendState, of ProducerState, and of ReportLease. Their __init__ sets each,
   nothing deletes one. */
enum { OPEN, SENT, DONE, W_TOPIC, W_PARTITION, STAMP_PREFIX, LEASE, IDENTITY, LAST_NUMBER, LAST_OFFSET,
       SEGMENT, PARENT, WRITER_SLOTS, NEXT_SEQUENCE = WRITER_SLOTS, BOUNDS, WRITERS, SEND_STATE_SLOTS,
       LEASE_UNTIL = SEND_STATE_SLOTS, COLLECTING, FORKED, STATE_SLOTS, UNTIL = STATE_SLOTS, SLOTS };
static const char *const slot_names[SLOTS] = {
    "open", "sent", "done", "topic", "partition", "stamp_prefix", "lease", "identity", "last_number",
    "last_offset", "segment", "parent", "next_sequence", "bounds", "writers", "lease_until",
    "collecting", "forked", "until"};
static Py_ssize_t slot_at[SLOTS];
static PyTypeObject *writer_type, *send_state_type, *state_type, *lease_type;
static PyObject *names, *wrapped_one, *system_clock;
static int clock_id; /* the system's clock of system_clock, -1: it has none */
#define SLOT(object, slot) (*(PyObject **)((char *)(object) + slot_at[slot]))

static PyObject *learn(PyObject *module, PyObject *given)
{
    PyObject *type[4], *scope, *wrapped, *clock;
    int id;
    if (!PyArg_ParseTuple(given, "O!O!O!O!O!O(Oi)", &PyType_Type, &type[0], &PyType_Type, &type[1], &PyType_Type,
                          &type[2], &PyType_Type, &type[3], &PyDict_Type, &scope, &wrapped, &clock, &id)) return NULL;
    for (int i = 0; i < SLOTS; i++) {
        PyObject *member = PyObject_GetAttrString(
            type[(i >= WRITER_SLOTS) + (i >= SEND_STATE_SLOTS) + (i >= STATE_SLOTS)], slot_names[i]);
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
    Py_XSETREF(state_type, (PyTypeObject *)Py_NewRef(type[2]));
    Py_XSETREF(lease_type, (PyTypeObject *)Py_NewRef(type[3]));
    Py_XSETREF(names, Py_NewRef(scope));
    Py_XSETREF(wrapped_one, Py_NewRef(wrapped));
    Py_XSETREF(system_clock, Py_NewRef(clock));
    clock_id = id;
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
#ifdef CLOCK_REALTIME
    struct timespec read_at; /* as Python reads it, without two calls and a float */
    if (clock == system_clock && clock_id >= 0 && !clock_gettime((clockid_t)clock_id, &read_at)) {
        Py_DECREF(clock);
        *seconds = (double)(read_at.tv_sec * INT64_C(1000000000) + read_at.tv_nsec) / 1e9;
        return 0;
    }
#endif
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
enum { SEND_STATE, WRITER, SEQUENCE, CALLBACK, PAIRS, RECORD };
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
    PyObject *lease;
    double at, until;
    if (error != Py_None) return 0;
    if (now(&at) < 0) return -1;
    lease = SLOT(writer, LEASE);
    if (!Py_IS_TYPE(lease, lease_type)) return PyErr_Format(PyExc_TypeError, "no ReportLease"), -1;
    until = PyFloat_AsDouble(SLOT(lease, UNTIL));
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

/* -- the report of a record of a topic that is not enrolled ------------------------------------------- */

/* ``report(callback, error, message)`` of Python, bound to its callback; the collector does not look at it
   either. The application's callback as it is would run wherever librdkafka's reports are taken. */
typedef struct {
    PyObject_HEAD
    PyObject *python, *state, *callback;
} PlainReport;
static PyTypeObject PlainReportType;
/* The newest one, while librdkafka has it (no reference): records that share a callback share the report. */
static PlainReport *newest;

static PyObject *plain_report(PyObject *python, PyObject *state, PyObject *callback)
{
    PlainReport *self = newest;
    if (self && self->callback == callback && self->state == state) return Py_NewRef(self);
    if (!(self = newest = PyObject_New(PlainReport, &PlainReportType))) return NULL;
    self->python = Py_NewRef(python);
    self->state = Py_NewRef(state);
    self->callback = Py_NewRef(callback);
    return (PyObject *)self;
}

static void plain_report_dealloc(PlainReport *self)
{
    if (newest == self) newest = NULL;
    Py_DECREF(self->python);
    Py_DECREF(self->state);
    Py_DECREF(self->callback);
    PyObject_Free(self);
}

static PyObject *plain_report_call(PlainReport *self, PyObject *given, PyObject *named)
{
    PyObject *error, *message;
    if (SLOT(self->state, COLLECTING) == Py_False) return PyObject_Call(self->callback, given, named);
    if (!PyArg_UnpackTuple(given, "report", 2, 2, &error, &message)) return NULL;
    return PyObject_CallFunctionObjArgs(self->python, self->callback, error, message, NULL);
}

static PyMemberDef plain_report_members[] = {
    {"__func__", T_OBJECT, offsetof(PlainReport, python), READONLY, "As a method's."}, {NULL}};
static PyTypeObject PlainReportType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kpsplit.producer._fast.PlainReport",
    .tp_basicsize = sizeof(PlainReport),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)plain_report_dealloc,
    .tp_call = (ternaryfunc)plain_report_call,
    .tp_members = plain_report_members,
};

/* -- what both calls are ----------------------------------------------------------------------------- */

/* As a tuple: it refers to what was there before it, and is never changed. So any cycle through it has an
   object that the collector can clear (the Producer's dictionary), and it needs no tp_clear. */
enum { PYTHON, STATE, TAKE, GIVE, OWN };
enum { SEND = OWN, REPORT, ONLY_ERRORS, PLAIN_REPORT, ROUTES, PLAIN, WANTED, HEADER, DEFAULT_CALLBACK, REFUSED,
        CRC32, ONLY_STAMP, HAS };                                    /* of produce() */
enum { POLL = OWN, QUEUED, WAITING, INSIDE, IN_A_CALL, RUN_QUEUED, POLL_HAS }; /* of poll() */
typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *has[HAS];
} Call;
static PyTypeObject CallType;

static PyObject *new_call(vectorcallfunc call, PyObject *const *has, int many)
{
    Call *self = PyObject_GC_New(Call, &CallType);
    if (!self) return NULL;
    self->call = call;
    for (int i = 0; i < HAS; i++) self->has[i] = i < many ? Py_NewRef(has[i]) : NULL;
    PyObject_GC_Track((PyObject *)self);
    return (PyObject *)self;
}

static int call_traverse(Call *self, visitproc visit, void *arg)
{
    for (int i = 0; i < HAS; i++) Py_VISIT(self->has[i]);
    return 0;
}

static void call_dealloc(Call *self)
{
    PyObject_GC_UnTrack(self);
    for (int i = 0; i < HAS; i++) Py_XDECREF(self->has[i]);
    PyObject_GC_Del(self);
}

static PyObject *call_attribute(Call *self, PyObject *name) /* __name__ and the like, as the version in Python */
{
    PyObject *found = PyObject_GenericGetAttr((PyObject *)self, name);
    if (found || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
    PyErr_Clear();
    return PyObject_GetAttr(self->has[PYTHON], name);
}

static PyMemberDef call_members[] = {
    {"__wrapped__", T_OBJECT, offsetof(Call, has), READONLY, "The version in Python."}, {NULL}};
static PyTypeObject CallType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kpsplit.producer._fast.Call",
    .tp_basicsize = sizeof(Call),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_HAVE_GC |
                Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_dealloc = (destructor)call_dealloc,
    .tp_traverse = (traverseproc)call_traverse,
    .tp_call = PyVectorcall_Call,
    .tp_getattro = (getattrofunc)call_attribute,
    .tp_vectorcall_offset = offsetof(Call, call),
    .tp_members = call_members,
};

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

/* -- produce() --------------------------------------------------------------------------------------- */

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
static int are_given(Call *self, PyObject *const *args, Py_ssize_t many, PyObject *named, PyObject **given)
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

static PyObject *send(Call *self, PyObject *topic, PyObject *key, PyObject *at, PyObject *bound,
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

/* A stamp: its prefix, and the sequence number in eight bytes, the highest first. */
static PyObject *complete_stamp(PyObject *prefix, PyObject *sequence)
{
    PyObject *stamp;
    Py_ssize_t size;
    unsigned long long number = PyLong_AsUnsignedLongLong(sequence);
    if ((number == (unsigned long long)-1 && PyErr_Occurred()) || !PyBytes_CheckExact(prefix)) return NULL;
    size = PyBytes_GET_SIZE(prefix);
    if (!(stamp = PyBytes_FromStringAndSize(NULL, size + 8))) return NULL;
    memcpy(PyBytes_AS_STRING(stamp), PyBytes_AS_STRING(prefix), size);
    for (int i = 7; i >= 0; i--, number >>= 8) PyBytes_AS_STRING(stamp)[size + i] = (char)(number & 0xff);
    return stamp;
}

/* The application's headers as they are now, None if there are none (a new reference). */
static PyObject *pairs_of(PyObject *headers)
{
    PyObject *items, *pairs;
    if (!header_count(headers)) return Py_NewRef(Py_None);
    if (PyList_CheckExact(headers)) return PyList_AsTuple(headers);
    if (!(items = PyDict_Items(headers))) return NULL;
    pairs = PyList_AsTuple(items);
    Py_DECREF(items);
    return pairs;
}

/* All headers of a record (a new reference). */
static PyObject *with_stamp(Call *self, PyObject *pairs, PyObject *stamp)
{
    PyObject *only = self->has[ONLY_STAMP], *every, *pair;
    Py_ssize_t count;
    if (pairs == Py_None) /* one for all: librdkafka copies it, and the lock is ours */
        return PyDict_SetItem(only, self->has[HEADER], stamp) < 0 ? NULL : Py_NewRef(only);
    if (!(pair = PyTuple_Pack(2, self->has[HEADER], stamp))) return NULL;
    count = PyTuple_GET_SIZE(pairs);
    if (!(every = PyList_New(count + 1))) {
        Py_DECREF(pair);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) PyList_SET_ITEM(every, i, Py_NewRef(PyTuple_GET_ITEM(pairs, i)));
    PyList_SET_ITEM(every, count, pair);
    return every;
}

/* The call of librdkafka raised: Python decides what to take back. It may raise another error instead. */
static void refused(Call *self, PyObject *const *record)
{
    PyObject *kind, *error, *trace, *said;
    PyErr_Fetch(&kind, &error, &trace);
    PyErr_NormalizeException(&kind, &error, &trace);
    if (trace) PyException_SetTraceback(error, trace);
    said = PyObject_CallFunctionObjArgs(self->has[REFUSED], error, record[SEND_STATE], record[WRITER],
                                        record[SEQUENCE], record[PAIRS], NULL);
    if (said) PyErr_Restore(kind, error, trace);
    else {
        Py_XDECREF(kind);
        Py_XDECREF(error);
        Py_XDECREF(trace);
    }
    Py_XDECREF(said);
}

/* The lock is ours. NULL without an error: only Python knows. */
static PyObject *send_stamped(Call *self, PyObject *send_state, PyObject *key, uint32_t hash,
                              PyObject *const *given)
{
    PyObject *writer = writer_of(send_state, hash), *sequence, *stamp = NULL, *every = NULL, *bound = NULL;
    PyObject *next = NULL, *sent = NULL, *result = NULL, *pairs = NULL;
    if (!writer) return NULL;
    sequence = Py_NewRef(SLOT(send_state, NEXT_SEQUENCE));
    if ((next = one_more(sequence)) && (sent = one_more(SLOT(writer, SENT))) &&
        (stamp = complete_stamp(SLOT(writer, STAMP_PREFIX), sequence)) &&
        (pairs = pairs_of(given[HEADERS])) && (every = with_stamp(self, pairs, stamp))) {
        PyObject *const record[RECORD] = {send_state, writer, sequence, given[ON_REPORT], pairs};
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
    Py_XDECREF(pairs);
    Py_XDECREF(every);
    Py_XDECREF(bound);
    return result;
}

/* -- of a topic that is not enrolled ---- */

/* The lock is ours. NULL without an error: only Python knows. */
static PyObject *send_plain(Call *self, PyObject *const *given)
{
    PyObject *bound, *result;
    double at, lease;
    if (PySet_Contains(self->has[PLAIN], given[TOPIC]) <= 0 || now(&at) < 0) return NULL;
    lease = PyFloat_AsDouble(SLOT(self->has[STATE], LEASE_UNTIL));
    if ((lease == -1.0 && PyErr_Occurred()) || at >= lease) return NULL;
    if (given[ON_REPORT] == Py_None) bound = Py_NewRef(Py_None);
    else if (self->has[ONLY_ERRORS] == Py_True) bound = PyMethod_New(self->has[PLAIN_REPORT], given[ON_REPORT]);
    else bound = plain_report(self->has[PLAIN_REPORT], self->has[STATE], given[ON_REPORT]);
    if (!bound) return NULL;
    result = send(self, given[TOPIC], given[KEY], given[AT], bound, given[HEADERS], given);
    Py_DECREF(bound);
    return result;
}

/* -- of any topic ---- */

static PyObject *produce(Call *self, PyObject *const *args, size_t flags, PyObject *named)
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

static PyObject *new_produce(PyObject *module, PyObject *given)
{
    PyObject *has[HAS], *made;
    if (!writer_type) return PyErr_Format(PyExc_RuntimeError, "learn() was not called");
    if (!PyArg_ParseTuple(given, "OO!OOOOOOO!O!O!OOOO", &has[PYTHON], state_type, &has[STATE], &has[TAKE],
                          &has[GIVE], &has[SEND], &has[REPORT], &has[ONLY_ERRORS], &has[PLAIN_REPORT],
                          &PyDict_Type, &has[ROUTES], &PySet_Type, &has[PLAIN], &PyList_Type, &has[WANTED],
                          &has[HEADER], &has[DEFAULT_CALLBACK], &has[REFUSED], &has[CRC32]) ||
        !(has[ONLY_STAMP] = PyDict_New())) return NULL;
    made = new_call((vectorcallfunc)produce, has, HAS);
    Py_DECREF(has[ONLY_STAMP]);
    return made;
}

/* -- poll() ------------------------------------------------------------------------------------------ */

/* The lock is ours. */
static PyObject *served(Call *self)
{
    PyObject *events = PyObject_CallOneArg(self->has[POLL], zero);
    give_back(self->has[GIVE]);
    return events;
}

/* What ran of what is queued, and what was served: the sum (takes the reference). */
static PyObject *with_queued(Call *self, PyObject *events)
{
    PyObject *ran, *sum = NULL;
    Py_ssize_t queued = PyObject_Size(self->has[QUEUED]);
    if (!queued) return events;
    if (queued > 0 && (ran = PyObject_CallNoArgs(self->has[RUN_QUEUED]))) {
        sum = PyNumber_Add(events, ran);
        Py_DECREF(ran);
    }
    Py_DECREF(events);
    return sum;
}

static int may_poll(Call *self, PyObject *const *args, size_t flags, PyObject *named) /* -1: an error */
{
    PyObject *in_a_call;
    if (named || PyVectorcall_NARGS(flags) != 1) return 0;
    if (args[0] != zero && !(PyFloat_CheckExact(args[0]) && PyFloat_AS_DOUBLE(args[0]) == 0.0)) return 0;
    if (PySet_GET_SIZE(self->has[WAITING]) || SLOT(self->has[STATE], FORKED) != Py_False) return 0;
    if (PyObject_Size(self->has[QUEUED])) return PyErr_Occurred() ? -1 : 0;
    if (!(in_a_call = PyObject_CallNoArgs(self->has[IN_A_CALL]))) return -1;
    Py_DECREF(in_a_call);
    return in_a_call == Py_False;
}

static PyObject *poll(Call *self, PyObject *const *args, size_t flags, PyObject *named)
{
    PyObject *me, *events = NULL, *kind, *error, *trace;
    int is_inside, takes = may_poll(self, args, flags, named);
    if (takes < 0) return NULL;
    if (takes) {
        if (!(me = PyLong_FromUnsignedLong(PyThread_get_thread_ident()))) return NULL;
        if (!(is_inside = PySet_Contains(self->has[INSIDE], me)) && !(is_inside = PySet_Add(self->has[INSIDE], me))) {
            if ((takes = is_taken(self->has[TAKE]))) events = served(self);
            PyErr_Fetch(&kind, &error, &trace);
            if (PySet_Discard(self->has[INSIDE], me) < 0) PyErr_WriteUnraisable(me);
            PyErr_Restore(kind, error, trace);
        } else takes = 0;
        Py_DECREF(me);
        if (is_inside < 0) return NULL;
        if (takes) return events ? with_queued(self, events) : NULL;
    }
    return PyObject_Vectorcall(self->has[PYTHON], args, flags, named);
}

static PyObject *new_poll(PyObject *module, PyObject *given)
{
    PyObject *has[POLL_HAS];
    if (!writer_type) return PyErr_Format(PyExc_RuntimeError, "learn() was not called");
    if (!PyArg_ParseTuple(given, "OO!OOOOO!O!OO", &has[PYTHON], state_type, &has[STATE], &has[TAKE], &has[GIVE],
                          &has[POLL], &has[QUEUED], &PySet_Type, &has[WAITING], &PySet_Type, &has[INSIDE],
                          &has[IN_A_CALL], &has[RUN_QUEUED])) return NULL;
    return new_call((vectorcallfunc)poll, has, POLL_HAS);
}

/* -- the module -------------------------------------------------------------------------------------- */

static PyMethodDef functions[] = {
    {"learn", learn, METH_VARARGS,
     "learn(writer_type, send_state_type, state_type, lease_type, names, wrapped_one, (system_clock, its id))"},
    {"report", report, METH_VARARGS, "report(python, only_errors, (send_state, writer, sequence, callback, pairs))"},
    {"produce", new_produce, METH_VARARGS,
     "produce(python, state, take, give, send, report, only_errors, plain_report, fast_routes, fast_plain, wanted, "
     "header, default_callback, refused, crc32)"},
    {"poll", new_poll, METH_VARARGS,
     "poll(python, state, take, give, poll, queued, waiting, inside, in_a_call, run_queued)"},
    {"inside", inside, METH_NOARGS, "Whether this thread is in a compiled produce(), which has no frame."},
    {NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_fast", .m_size = 0, .m_methods = functions};

PyMODINIT_FUNC PyInit__fast(void)
{
    struct { PyObject **name; const char *text; } interned[] = {
        {&monotonic_name, "monotonic"}, {&offset_name, "offset"}};
    PyObject *module;
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) /* all above is of one interpreter */
        return PyErr_Format(PyExc_ImportError, "only the main interpreter can have the compiled part");
    for (size_t i = 0; i < sizeof interned / sizeof *interned; i++)
        if (!(*interned[i].name = PyUnicode_InternFromString(interned[i].text))) return NULL;
    for (int i = 0; i < ARGUMENTS; i++)
        if (!(arguments[i] = PyUnicode_InternFromString(argument_names[i]))) return NULL;
    if (!(zero = PyLong_FromLong(0)) || !(anywhere = PyLong_FromLong(-1))) return NULL;
    if (PyType_Ready(&ReportType) < 0 || PyType_Ready(&PlainReportType) < 0 ||
        PyType_Ready(&CallType) < 0) return NULL;
    if (!(module = PyModule_Create(&definition))) return NULL;
    if (PyModule_AddIntConstant(module, "source", (long)SOURCE) < 0) Py_CLEAR(module);
    return module;
}
