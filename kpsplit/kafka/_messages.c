/* What a record costs that is read, compiled: the functions of logical_message.py with these names, and the poll()
   of buffer.py.

   Each function takes a list of records as the client gave them, and answers as its version in Python does (the reasons
   stand there). Where something in the list is no plain Message, or an answer needs more than these few lines, it
   returns None: Python decides, from the same list. Nothing is changed then. Where a decision changes, both
   change: the tests of reading run on both.

   Only CPython's API: a Message is asked by its own methods, called without the interpreter. No bytecode runs in
   between, but for a key's CRC-32, which calls nothing. So no signal handler and no other thread comes in
   between. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>
#include <time.h>

#if defined(Py_GIL_DISABLED) || defined(PYPY_VERSION)
#error "this needs CPython's global interpreter lock; without it records are looked at in Python"
#endif
#ifndef SOURCE
#define SOURCE 0u /* the CRC-32 of this file: what was built of another one is not used */
#endif
#define MULTIPLIER 1640531527u

/* -- what is learned of the Python side -------------------------------------------------------------- */

static PyTypeObject *message_type;
enum { KEY, TOPIC, PARTITION, HEADERS, METHODS };
static const char *const method_names[METHODS] = {"key", "topic", "partition", "headers"};
static PyCFunction methods[METHODS];
static PyObject *crc32, *stamp_name, *marker_name, *unreadable;

static PyObject *learn(PyObject *module, PyObject *given)
{
    PyObject *type, *crc, *stamp, *marker, *broken;
    PyCFunction found[METHODS];
    if (!PyArg_ParseTuple(given, "O!OUUO", &PyType_Type, &type, &crc, &stamp, &marker, &broken)) return NULL;
    for (int i = 0; i < METHODS; i++) {
        PyObject *method = PyObject_GetAttrString(type, method_names[i]);
        if (!method) return NULL;
        if (!Py_IS_TYPE(method, &PyMethodDescr_Type) ||
            ((PyMethodDescrObject *)method)->d_method->ml_flags != METH_NOARGS) {
            Py_DECREF(method);
            return PyErr_Format(PyExc_ImportError, "Message.%s is another kind of method", method_names[i]);
        }
        found[i] = ((PyMethodDescrObject *)method)->d_method->ml_meth;
        Py_DECREF(method);
    }
    memcpy(methods, found, sizeof methods);
    Py_XSETREF(message_type, (PyTypeObject *)Py_NewRef(type));
    Py_XSETREF(crc32, Py_NewRef(crc));
    Py_XSETREF(stamp_name, Py_NewRef(stamp));
    Py_XSETREF(marker_name, Py_NewRef(marker));
    Py_XSETREF(unreadable, Py_NewRef(broken));
    Py_RETURN_NONE;
}

#define ASK(message, method) methods[method](message, NULL)

/* Whether these are records as the client gave them. */
static int are_plain(PyObject *list)
{
    if (!message_type || !PyList_CheckExact(list)) return 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++)
        if (!Py_IS_TYPE(PyList_GET_ITEM(list, i), message_type)) return 0;
    return 1;
}

/* -- of all records of a list ------------------------------------------------------------------------ */

static PyObject *all_keyed(PyObject *module, PyObject *list)
{
    int truth = 1;
    if (!are_plain(list)) Py_RETURN_NONE;
    for (Py_ssize_t i = 0; truth > 0 && i < PyList_GET_SIZE(list); i++) {
        PyObject *key = ASK(PyList_GET_ITEM(list, i), KEY);
        if (!key) return NULL;
        truth = PyBytes_CheckExact(key) ? PyBytes_GET_SIZE(key) > 0 : key == Py_None ? 0 : PyObject_IsTrue(key);
        Py_DECREF(key);
    }
    return truth < 0 ? NULL : PyBool_FromLong(truth);
}

static PyObject *content_bytes(PyObject *module, PyObject *list)
{
    Py_ssize_t sum = 0;
    if (!are_plain(list)) Py_RETURN_NONE;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
        PyObject *message = PyList_GET_ITEM(list, i), *key = ASK(message, KEY);
        Py_ssize_t value = key ? PyObject_Size(message) : -1, known = 1;
        if (key && PyBytes_CheckExact(key)) sum += PyBytes_GET_SIZE(key);
        else known = key == Py_None;
        Py_XDECREF(key);
        if (value < 0) return NULL;
        if (!known) Py_RETURN_NONE;
        sum += value;
    }
    return PyLong_FromSsize_t(sum);
}

/* Whether two records are of one physical partition. -1: an error. */
static int are_together(PyObject *one, PyObject *other)
{
    static const int both[] = {PARTITION, TOPIC};
    int same = 1;
    for (int i = 0; same > 0 && i < 2; i++) {
        PyObject *left = ASK(one, both[i]), *right = left ? ASK(other, both[i]) : NULL;
        same = !right ? -1 : left == right ? 1 : PyObject_RichCompareBool(left, right, Py_EQ);
        Py_XDECREF(left);
        Py_XDECREF(right);
    }
    return same;
}

static PyObject *stretch_ends(PyObject *module, PyObject *list)
{
    PyObject *ends;
    if (!are_plain(list)) Py_RETURN_NONE;
    ends = PyList_New(0);
    for (Py_ssize_t at = 1, count = PyList_GET_SIZE(list); ends && at <= count; at++) {
        int same = at == count ? 0 : are_together(PyList_GET_ITEM(list, at - 1), PyList_GET_ITEM(list, at));
        PyObject *end = same ? NULL : PyLong_FromSsize_t(at);
        if (same < 0 || (!same && (!end || PyList_Append(ends, end) < 0))) Py_CLEAR(ends);
        Py_XDECREF(end);
    }
    return ends;
}

/* -- which records a member is given ------------------------------------------------------------------ */

/* The place of a key, in the range of its segment. -1: an error. */
static int64_t placed(PyObject *key, uint64_t lo, uint64_t hi)
{
    PyObject *crc = PyObject_CallOneArg(crc32, key);
    unsigned long number;
    uint64_t hash;
    if (!crc) return -1;
    number = PyLong_AsUnsignedLongMask(crc);
    Py_DECREF(crc);
    if (number == (unsigned long)-1 && PyErr_Occurred()) return -1;
    hash = (uint32_t)((uint32_t)number * MULTIPLIER);
    return (int64_t)(lo <= hash && hash < hi ? hash : lo + hash % (hi - lo));
}

static PyObject *kept_by_key(PyObject *list, const uint64_t *bounds, Py_ssize_t count, uint64_t lo, uint64_t hi)
{
    PyObject *kept = PyList_New(0);
    for (Py_ssize_t i = 0; kept && i < PyList_GET_SIZE(list); i++) {
        PyObject *message = PyList_GET_ITEM(list, i), *key = ASK(message, KEY);
        int64_t at = key ? placed(key, lo, hi) : -1;
        Py_ssize_t before = 0;
        Py_XDECREF(key);
        if (at < 0) Py_CLEAR(kept);
        else {
            while (before < count && bounds[before] <= (uint64_t)at) before++; /* bisect_right(): there are few */
            if (before & 1 && PyList_Append(kept, message) < 0) Py_CLEAR(kept);
        }
    }
    return kept;
}

static PyObject *of_key_ranges(PyObject *module, PyObject *given)
{
    PyObject *list, *bounds, *kept;
    unsigned long long lo, hi;
    uint64_t *numbers;
    Py_ssize_t count;
    if (!PyArg_ParseTuple(given, "OO!KK", &list, &PyList_Type, &bounds, &lo, &hi)) return NULL;
    if (!are_plain(list) || lo >= hi) Py_RETURN_NONE;
    count = PyList_GET_SIZE(bounds);
    if (!(numbers = PyMem_New(uint64_t, count ? count : 1))) return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++) {
        numbers[i] = PyLong_AsUnsignedLongLong(PyList_GET_ITEM(bounds, i));
        if (numbers[i] == (uint64_t)-1 && PyErr_Occurred()) {
            PyMem_Free(numbers);
            return NULL;
        }
    }
    kept = kept_by_key(list, numbers, count, lo, hi);
    PyMem_Free(numbers);
    return kept;
}

/* -- records that no look at the lineage is needed for ------------------------------------------------ */

typedef struct {
    uint64_t home, first_epoch, last_epoch;
} Here;

static uint64_t number_of(const unsigned char *bytes, int many) /* big-endian */
{
    uint64_t number = 0;
    for (int i = 0; i < many; i++) number = number << 8 | bytes[i];
    return number;
}

/* Stamp.decode(), is_at() and RecordFilter._obvious(): of version 2, 29 bytes; all else is Python's. */
static int is_obvious_stamp(PyObject *value, const Here *here)
{
    const unsigned char *bytes;
    uint64_t epoch;
    if (!PyBytes_CheckExact(value) || PyBytes_GET_SIZE(value) != 29) return 0;
    bytes = (const unsigned char *)PyBytes_AS_STRING(value);
    if (bytes[0] != 2) return 0;
    if (number_of(bytes + 13, 8) != here->home) return 1; /* a copy */
    epoch = number_of(bytes + 1, 4);
    return here->first_epoch <= epoch && epoch <= here->last_epoch;
}

static int are_obvious(PyObject *headers, const Here *here) /* -1: an error */
{
    int stamps = 0;
    if (headers == Py_None) return 1;
    if (!PyList_CheckExact(headers)) return 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(headers); i++) {
        PyObject *pair = PyList_GET_ITEM(headers, i), *name;
        int found;
        if (!PyTuple_CheckExact(pair) || PyTuple_GET_SIZE(pair) != 2) return 0;
        name = PyTuple_GET_ITEM(pair, 0);
        if (!PyUnicode_CheckExact(name)) return 0;
        if ((found = PyObject_RichCompareBool(name, marker_name, Py_EQ))) return found < 0 ? -1 : 0;
        if ((found = PyObject_RichCompareBool(name, stamp_name, Py_EQ)) < 0) return -1;
        if (found && (stamps++ || !is_obvious_stamp(PyTuple_GET_ITEM(pair, 1), here))) return 0;
    }
    return 1;
}

/* The client's list of headers (a new reference); one that is broken is replaced, as headers_of() does. */
static PyObject *headers_of(PyObject *message)
{
    PyObject *headers = ASK(message, HEADERS);
    if (!PyErr_Occurred()) return headers;
    Py_XDECREF(headers); /* it comes with the error */
    /* Another name after the one that is no text makes a SystemError of it. */
    if (!PyErr_ExceptionMatches(PyExc_UnicodeError) && !PyErr_ExceptionMatches(PyExc_SystemError)) return NULL;
    PyErr_Clear();
    return PyObject_CallOneArg(unreadable, message);
}

static PyObject *obvious_until(PyObject *module, PyObject *given)
{
    PyObject *list;
    unsigned long long home, first, last;
    Py_ssize_t at;
    int obvious = 1;
    if (!PyArg_ParseTuple(given, "OnKKK", &list, &at, &home, &first, &last)) return NULL;
    if (!message_type || !PyList_CheckExact(list) || at < 0) Py_RETURN_NONE;
    for (const Here here = {home, first, last}; at < PyList_GET_SIZE(list); at++) {
        PyObject *message = PyList_GET_ITEM(list, at), *headers;
        if (!Py_IS_TYPE(message, message_type)) break;
        headers = headers_of(message);
        obvious = headers ? are_obvious(headers, &here) : -1;
        Py_XDECREF(headers);
        if (obvious <= 0) break;
    }
    return obvious < 0 ? NULL : PyLong_FromSsize_t(at);
}

/* -- in logical terms --------------------------------------------------------------------------------- */

/* Whether an object of one class is as good as one of the other: ``__class__ = …`` asks the same, and is refused
   only because objects of a built-in class may be shared. A record that was read is not. */
static int has_same_layout(PyTypeObject *kind)
{
    return (kind->tp_flags & Py_TPFLAGS_HEAPTYPE) && PyType_IsSubtype(kind, message_type) &&
           kind->tp_basicsize == message_type->tp_basicsize && kind->tp_itemsize == message_type->tp_itemsize &&
           kind->tp_dictoffset == message_type->tp_dictoffset &&
           kind->tp_weaklistoffset == message_type->tp_weaklistoffset &&
           kind->tp_free == message_type->tp_free && PyType_IS_GC(kind) == PyType_IS_GC(message_type);
}

static PyObject *relabel(PyObject *module, PyObject *given)
{
    PyObject *list;
    PyTypeObject *kind;
    if (!PyArg_ParseTuple(given, "OO!", &list, &PyType_Type, &kind)) return NULL;
    if (!are_plain(list) || !has_same_layout(kind)) Py_RETURN_NONE;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) { /* nothing in here can fail */
        Py_INCREF(kind); /* each object of a class that a program made has a reference to it */
        Py_SET_TYPE(PyList_GET_ITEM(list, i), kind);
        if (message_type->tp_flags & Py_TPFLAGS_HEAPTYPE) Py_DECREF(message_type);
    }
    Py_RETURN_TRUE;
}

/* -- poll() -------------------------------------------------------------------------------------------- */

/* ``FetchBuffer.poller()`` of Python, for a record in hand. Everything else goes to the version in Python, which
   begins anew: what was done here it does again. As a tuple for the collector: it refers to what was there before
   it, and is never changed, so any cycle through it has an object that can be cleared (the Poller's dictionary). */
enum { PYTHON, LAST, POPLEFT, UNTIL, CLOCK, HAS };
typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *has[HAS];
    int clock_id; /* the system's clock of CLOCK, -1: it has none */
} Poll;
static PyTypeObject PollType;
static PyObject *one;

static int clock_of(Poll *self, double *seconds)
{
    PyObject *read;
#ifdef CLOCK_REALTIME
    struct timespec at; /* as Python reads it, without a call and a float */
    if (self->clock_id >= 0 && !clock_gettime((clockid_t)self->clock_id, &at)) {
        *seconds = (double)(at.tv_sec * INT64_C(1000000000) + at.tv_nsec) / 1e9;
        return 0;
    }
#endif
    if (!(read = PyObject_CallNoArgs(self->has[CLOCK]))) return -1;
    *seconds = PyFloat_AsDouble(read);
    Py_DECREF(read);
    return *seconds == -1.0 && PyErr_Occurred() ? -1 : 0;
}

static PyObject *poll(Poll *self, PyObject *const *args, size_t flags, PyObject *named)
{
    double at, until;
    PyObject *record;
    /* First: what may be handed out from now on is not processed. */
    if (PyList_SetItem(self->has[LAST], 0, Py_NewRef(one)) < 0 || clock_of(self, &at) < 0) return NULL;
    if (!PyList_GET_SIZE(self->has[UNTIL])) return PyErr_Format(PyExc_IndexError, "no moment");
    until = PyFloat_AsDouble(PyList_GET_ITEM(self->has[UNTIL], 0));
    if (until == -1.0 && PyErr_Occurred()) return NULL;
    if (at <= until && PyVectorcall_NARGS(flags) <= 1 && !named) {
        if ((record = PyObject_CallNoArgs(self->has[POPLEFT]))) return record;
        if (!PyErr_ExceptionMatches(PyExc_IndexError)) return NULL;
        PyErr_Clear();
    }
    return PyObject_Vectorcall(self->has[PYTHON], args, flags, named);
}

static PyObject *new_poll(PyObject *module, PyObject *given)
{
    PyObject *has[HAS];
    Poll *self;
    int id;
    if (!PyArg_ParseTuple(given, "OO!OO!Oi", &has[PYTHON], &PyList_Type, &has[LAST], &has[POPLEFT], &PyList_Type,
                          &has[UNTIL], &has[CLOCK], &id) || !(self = PyObject_GC_New(Poll, &PollType))) return NULL;
    self->call = (vectorcallfunc)poll;
    self->clock_id = id;
    for (int i = 0; i < HAS; i++) self->has[i] = Py_NewRef(has[i]);
    PyObject_GC_Track((PyObject *)self);
    return (PyObject *)self;
}

static int poll_traverse(Poll *self, visitproc visit, void *arg)
{
    for (int i = 0; i < HAS; i++) Py_VISIT(self->has[i]);
    return 0;
}

static void poll_dealloc(Poll *self)
{
    PyObject_GC_UnTrack(self);
    for (int i = 0; i < HAS; i++) Py_DECREF(self->has[i]);
    PyObject_GC_Del(self);
}

static PyObject *poll_attribute(Poll *self, PyObject *name) /* __name__ and the like, as the version in Python */
{
    PyObject *found = PyObject_GenericGetAttr((PyObject *)self, name);
    if (found || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
    PyErr_Clear();
    return PyObject_GetAttr(self->has[PYTHON], name);
}

static PyMemberDef poll_members[] = {
    {"__wrapped__", T_OBJECT, offsetof(Poll, has), READONLY, "The version in Python."}, {NULL}};
static PyTypeObject PollType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kpsplit.kafka._messages.Poll",
    .tp_basicsize = sizeof(Poll),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_HAVE_GC |
                Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_dealloc = (destructor)poll_dealloc,
    .tp_traverse = (traverseproc)poll_traverse,
    .tp_call = PyVectorcall_Call,
    .tp_getattro = (getattrofunc)poll_attribute,
    .tp_vectorcall_offset = offsetof(Poll, call),
    .tp_members = poll_members,
};

/* -- the module -------------------------------------------------------------------------------------- */

static PyMethodDef functions[] = {
    {"learn", learn, METH_VARARGS, "learn(Message, crc32, stamp_name, marker_name, unreadable)"},
    {"all_keyed", all_keyed, METH_O, "all_keyed(messages)"},
    {"content_bytes", content_bytes, METH_O, "content_bytes(messages)"},
    {"stretch_ends", stretch_ends, METH_O, "stretch_ends(messages)"},
    {"of_key_ranges", of_key_ranges, METH_VARARGS, "of_key_ranges(messages, bounds, lo, hi)"},
    {"obvious_until", obvious_until, METH_VARARGS, "obvious_until(messages, at, home, first_epoch, last_epoch)"},
    {"relabel", relabel, METH_VARARGS, "relabel(messages, kind)"},
    {"poll", new_poll, METH_VARARGS, "poll(python, last, popleft, until, clock, its id)"},
    {NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_messages", .m_size = 0, .m_methods = functions};

PyMODINIT_FUNC PyInit__messages(void)
{
    PyObject *module;
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) /* all above is of one interpreter */
        return PyErr_Format(PyExc_ImportError, "only the main interpreter can have the compiled part");
    if (!(one = PyLong_FromLong(1)) || PyType_Ready(&PollType) < 0) return NULL;
    if (!(module = PyModule_Create(&definition))) return NULL;
    if (PyModule_AddIntConstant(module, "source", (long)SOURCE) < 0) Py_CLEAR(module);
    return module;
}
